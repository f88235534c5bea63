"""In-memory fakes of a store, a source and a sink, for tests and for people who want to see postdate without servers.

``MemoryStore`` passes the same suite as the real store (``tests/conformance``); the moves it makes are those of
``bridge.core.state``. Nothing here is durable.
"""

from adapters.memory.clock import ManualClock
from adapters.memory.sink import MemorySink
from adapters.memory.source import MemorySource
from adapters.memory.store import Memory, MemoryStore

__all__ = ["ManualClock", "Memory", "MemorySink", "MemorySource", "MemoryStore"]
