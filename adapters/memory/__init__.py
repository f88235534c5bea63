"""A store, a source and a sink in memory, for tests. Nothing is durable, and no setting chooses them.

All three pass the suites of their ports (``tests/conformance``). ``MemoryStore`` moves messages by the table in
``bridge.core.state``.
"""

from adapters.memory.memory_sink import MemorySink
from adapters.memory.memory_source import MemorySource
from adapters.memory.store import ManualClock, Memory, MemoryStore

__all__ = ["ManualClock", "Memory", "MemorySink", "MemorySource", "MemoryStore"]
