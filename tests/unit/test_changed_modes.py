"""What is left behind by routes that change how their messages wait: what is said of it, and who looks after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.core.errors import BrokerUnavailable, PostdateError, StoreUnavailable, StoreUnfit
from bridge.desk.leftovers import Remains
from bridge.pipeline.relay import Relay
from bridge.process import drains
from bridge.process.drains import LevelsDrain, StoreDrain


class Broker:
    """One that is away at first, and then names a route."""

    def __init__(self, leaving_stops: bool = False) -> None:
        self.asked = 0
        self.drained: list[str] = []
        self.leaving = LevelsDrain(self.look, self.drain)
        self._stops = leaving_stops
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def look(self) -> Sequence[str]:
        self.asked += 1
        if self.asked == 1:
            raise BrokerUnavailable("no broker answers")
        if self._stops:
            self.leaving.stop()
            self._loop.call_soon_threadsafe(self.stopped.set)
        return ["payments"]

    def drain(self, route: str) -> Relay:
        self.drained.append(route)
        raise NotImplementedError("far enough")


async def test_levels_of_before_are_drained_as_soon_as_the_broker_can_be_asked() -> None:
    broker = Broker()
    async with asyncio.timeout(20):
        with pytest.raises(NotImplementedError, match="far enough"):
            await broker.leaving.run()
    assert (broker.asked, broker.drained) == (2, ["payments"])


async def test_nothing_is_begun_when_the_process_stops() -> None:
    broker = Broker(leaving_stops=True)
    running = asyncio.ensure_future(broker.leaving.run())
    async with asyncio.timeout(20):
        await broker.stopped.wait()
    await asyncio.wait([running], timeout=0.05)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert (broker.asked, broker.drained, broker.leaving.finished()) == (2, [], True)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again at once."""
    monkeypatch.setattr(drains, "LOOK_S", 0)


class OldStore:
    """One that cannot be asked at first, then is empty, and then holds messages."""

    def __init__(self, expected: bool, *answers: Remains | PostdateError) -> None:
        self._answers = list(answers)
        self.served = asyncio.Event()
        self.emptying = StoreDrain(self.look, str, self.open, expected)

    async def look(self) -> Remains:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, PostdateError):
            raise answer
        return answer

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        self.served.set()
        yield self

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        return (asyncio.sleep(3600),)

    def take_no_more(self) -> int:
        return 3

    def finished(self) -> bool:
        return False

    async def leave(self) -> int:
        return 2

    async def run(self) -> list[str]:
        """Until it is served; what was said meanwhile."""
        with capture_logs() as said:
            running = asyncio.ensure_future(self.emptying.run())
            async with asyncio.timeout(20):
                await self.served.wait()
            assert (self.emptying.take_no_more(), self.emptying.finished(), await self.emptying.leave()) == (
                3,
                False,
                2,
            )
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert (self.emptying.take_no_more(), self.emptying.finished(), await self.emptying.leave()) == (0, True, 0)
        return [str(entry.get("what", entry["event"])) for entry in said]


AWAY, UNFIT = StoreUnavailable("nobody answers"), StoreUnfit("other shards")
SOME = Remains(1, 0, {})


async def test_a_store_of_before_is_looked_at_until_it_holds_something_and_every_state_is_said_once() -> None:
    cannot_tell = "whether Redis still holds messages of previous settings is not known: "
    store = OldStore(True, AWAY, AWAY, Remains(0, 0, {}), Remains(0, 0, {}), Remains(0, 1, {}), UNFIT, SOME)
    assert await store.run() == [
        f"{cannot_tell}nobody answers",
        "nothing left behind",
        str(Remains(0, 1, {})),
        f"{cannot_tell}other shards",
        str(SOME),
    ]


async def test_a_store_that_nobody_has_named_may_be_away_without_a_word() -> None:
    assert await OldStore(False, AWAY, Remains(0, 0, {}), SOME).run() == [str(SOME)]
