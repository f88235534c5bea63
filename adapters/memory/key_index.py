"""The key index of one shard: which messages stand under a producer's key. As ``lua/include/key_index.lua``."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core.ports import Found

#: Above so many ids a key is no identity any more, and only their number is kept.
IDS_MAX = 16


class KeyIndex:
    """Field -> ids in the order in which they came, or their number."""

    def __init__(self) -> None:
        self._ids: dict[bytes, list[bytes]] = {}
        self._numbers: dict[bytes, int] = {}

    def add(self, field: bytes, ids: Sequence[bytes]) -> None:
        """These messages have this key."""
        if field in self._numbers:
            self._numbers[field] += len(ids)
            return
        listed = self._ids.get(field, [])
        if len(listed) + len(ids) > IDS_MAX:
            self._ids.pop(field, None)
            self._numbers[field] = len(listed) + len(ids)
        else:
            self._ids[field] = [*listed, *ids]

    def remove(self, field: bytes, message_id: bytes) -> None:
        """This message is gone."""
        if field in self._numbers:
            self._numbers[field] -= 1
            if self._numbers[field] <= 0:
                del self._numbers[field]
        elif message_id in self._ids.get(field, ()):
            self._ids[field].remove(message_id)
            if not self._ids[field]:
                del self._ids[field]

    def found(self, field: bytes) -> Found:
        """What stands under a field."""
        return Found(list(self._ids.get(field, ())), self._numbers.get(field, 0))

    def fields(self) -> set[bytes]:
        """Every field that holds something."""
        return self._ids.keys() | self._numbers.keys()
