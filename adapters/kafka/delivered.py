"""What a shard has delivered lately, and the markers that say so. Pure.

A marker is a record of the marker topic. It is committed in one transaction with the records that it names. Its value
has a line for each: route and id. An empty marker only opens a session of the shard's producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from bridge.core.ports import Letter

#: A span of the memory is this part of the whole.
_SPANS = 10
#: Lines of one marker. With the longest names it stays below Kafka's default limit of a record, 1 MB.
_LINES_MAX = 5000
#: A pause is longer than this part of the window.
_PAUSE = 4
#: The most keys that a new session repeats.
_NEWEST_MAX = 20_000


def marker_topic(group: str) -> str:
    """Return the name of the marker topic. Its partitions are the shards; the transactional ids begin with it."""
    return f"{group}.released"


def key_of(letter: Letter) -> bytes:
    """Return what names a delivery in a marker. A route is part of it: a message may go to several destinations."""
    return b"%b %b" % (letter.route.encode(), letter.public_id)


def written(keys: Sequence[bytes]) -> Iterator[bytes]:
    """Return the values of the markers for these keys, at least one."""
    for start in range(0, max(1, len(keys)), _LINES_MAX):
        yield b"\n".join(keys[start : start + _LINES_MAX])


def read(value: bytes | None) -> list[bytes]:
    """Return the keys of a marker."""
    return value.split(b"\n") if value else []


class DeliveredKeys:
    """The keys of the last ``window_ms`` before the newest, by the moments of their markers (Unix ms)."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        #: The first moment of each span, and its keys in the order of their markers.
        self._spans: deque[tuple[int, dict[bytes, None]]] = deque()
        self._newest_ms = 0

    def add(self, at_ms: int, keys: Iterable[bytes]) -> None:
        """Add delivered messages. A moment before the newest one counts as the newest."""
        at_ms = self._newest_ms = max(at_ms, self._newest_ms)
        spans = self._spans
        if not spans or at_ms >= spans[-1][0] + self.window_ms // _SPANS:
            spans.append((at_ms, {}))
            while len(spans) > 1 and spans[1][0] <= at_ms - self.window_ms:
                spans.popleft()
        spans[-1][1].update(dict.fromkeys(keys))

    def __contains__(self, key: bytes) -> bool:
        return any(key in keys for _, keys in self._spans)

    def repeated(self, now_ms: int) -> list[bytes]:
        """Return what a session that begins now has to mark again, so that later sessions find it in their window.

        After a pause that is the newest keys, of one to two spans: more than an instance can have left unsettled.
        """
        if not self._spans or now_ms - self._newest_ms < self.window_ms // _PAUSE:
            return []
        return [key for _, keys in list(self._spans)[-2:] for key in keys][-_NEWEST_MAX:]
