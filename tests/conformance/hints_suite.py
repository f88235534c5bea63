"""What every store promises of hints: another instance hears of a nearer due moment."""

from __future__ import annotations

import asyncio
from itertools import count

from bridge.core.ports import Batch, Keyed
from bridge.parking.envelope import index_field
from tests.conformance.rig import HOUR_MS, Rig, claim, park

FIELD = index_field(b"orders", b"k")


class Hints:
    """A hint names the moment that is next in a shard."""

    async def test_a_nearer_due_moment_is_heard_of_and_a_later_one_is_not(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        far_ms = await rig.now_ms() + HOUR_MS
        heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        listening = asyncio.create_task(other.listen(lambda shard, due_ms: heard.put_nowait((shard, due_ms))))
        try:
            # Hints are lost until the subscription is in place.
            for nearer in count():
                await park(store, rig.message(far_ms - nearer, 1), shard=1)
                try:
                    assert (await asyncio.wait_for(heard.get(), 0.05))[0] == 1
                    break
                except TimeoutError:
                    assert nearer < 100
            await park(store, rig.message(far_ms + 1, 1), shard=1)  # later: no hint
            await park(store, rig.message(far_ms - 1000, 1), shard=1)
            while (hint := await asyncio.wait_for(heard.get(), 5)) != (1, far_ms - 1000):
                assert hint[1] <= far_ms, "a hint of an earlier call, which arrived late"
            # The first of this call is replaced by the second: the hint names what is there, not what was.
            batch = Batch(store.new_token())
            batch.messages = [rig.message(far_ms - 3000, 1), rig.message(far_ms - 2000, 1)]
            batch.keyed = [Keyed(1, FIELD, "replace"), Keyed(2, FIELD, "replace")]
            await store.park({1: batch})
            assert await asyncio.wait_for(heard.get(), 5) == (1, far_ms - 2000)
            await claim(store, 1)
            await store.hand_over([1])
            assert await asyncio.wait_for(heard.get(), 5) == (1, 0)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
