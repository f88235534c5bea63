"""A store, a source and a sink in memory, for tests and for trying postdate without servers. Nothing is durable.

All three pass the suites of their ports (``tests/conformance``). ``MemoryStore`` moves messages by the table in
``bridge.core.state``.
"""

from adapters.memory.sink import MemorySink
from adapters.memory.source import MemorySource
from adapters.memory.store import ManualClock, Memory, MemoryStore

__all__ = ["ManualClock", "Memory", "MemorySink", "MemorySource", "MemoryStore"]
