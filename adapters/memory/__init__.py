"""A store, a source and a sink in memory, for tests and for trying postdate without servers. Nothing is durable.

``MemoryStore`` passes the same suite as the Redis store (``tests/conformance``) and moves messages by the table in
``bridge.core.state``.
"""

from adapters.memory.sink import MemorySink
from adapters.memory.source import MemorySource
from adapters.memory.store import ManualClock, Memory, MemoryStore

__all__ = ["ManualClock", "Memory", "MemorySink", "MemorySource", "MemoryStore"]
