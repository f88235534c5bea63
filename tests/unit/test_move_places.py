"""The log of moves in Redis. Its places are exact where Redis keeps a moment, because its clock was set back. At an
entry that is no move, no reader stops."""

from __future__ import annotations

from typing import Any

from adapters.memory.memory_journal import MemoryJournal
from adapters.redis.keys import StoreKeys
from adapters.redis.move_log import RedisMoves
from bridge.core.journal import Written
from bridge.pipeline.move_tail import MoveTail

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


class Stream:
    """A stream that begins, as after a loss of the store or a page of a restore, and then has many deliveries."""

    def __init__(self, deliveries: int) -> None:
        beginning = (b"1-0", {b"m": b"start", b"i": b"", b"v": b""})
        self.ids = [b"%020d" % number for number in range(deliveries)]
        facts = [{b"m": b"delivered", b"i": message_id, b"v": b""} for message_id in self.ids]
        self.entries = dict([beginning, *((b"%d-0" % (MS + n), fact) for n, fact in enumerate(facts))])

    async def xrange(self, *_: Any, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        return list(self.entries.items())[:count]

    async def pexpire(self, *_: Any) -> bool:
        return True

    async def xdel(self, _: str, *names: bytes) -> None:
        for name in names:
            del self.entries[name]


async def test_the_beginning_of_a_log_ends_no_reading_before_its_last_move() -> None:
    """A restore, and what loads cold messages, believe a row after one reading: a move that is left behind would let a
    delivered message be delivered again."""
    stream: Any = Stream(deliveries=250)
    journal = MemoryJournal()
    await MoveTail(journal, RedisMoves(stream, StoreKeys("postdate", 1, "aaaaaa"))).catch_up([0])
    assert stream.entries == {}
    rows = await journal.look(stream.ids)
    assert [rows[message_id].state for message_id in stream.ids] == [Written.DELIVERED] * 250
