"""The places of moves in Redis's log: exact where Redis keeps a moment, because its clock was set back."""

from __future__ import annotations

from typing import Any

from adapters.redis.keys import StoreKeys
from adapters.redis.move_log import RedisMoves

MS, MANY = 1_800_000_000_000, 1 << 20


class Log:
    """A stream with three entries of one moment, the last two beyond a million."""

    def __init__(self) -> None:
        self.deleted: tuple[bytes, ...] = ()

    async def xrange(self, *_: Any, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        facts = {b"m": b"delivered", b"i": b"0" * 20, b"v": b""}
        return [(b"%d-%d" % (MS, number), facts) for number in (MANY - 1, MANY, MANY + 1)][:count]

    async def pexpire(self, *_: Any) -> bool:
        return True

    async def xdel(self, _: str, *names: bytes) -> None:
        self.deleted = names


async def test_more_than_a_million_moves_of_a_moment_keep_their_order_and_are_forgotten_one_by_one() -> None:
    log: Any = Log()
    moves = RedisMoves(log, StoreKeys("postdate", 1, "aaaaaa"))
    read = (await moves.read([0], 3))[0]
    places = [move.at for move in read.moves]
    assert places == sorted(set(places))
    assert {move.at_ms for move in read.moves} == {MS}
    await moves.forget(0, (await moves.read([0], 2))[0].names)
    assert log.deleted == (b"%d-%d" % (MS, MANY - 1), b"%d-%d" % (MS, MANY))
