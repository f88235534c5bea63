"""What a parent hands to a process: no value is lost, however early it is sent."""

from __future__ import annotations

import asyncio
import os

from bridge.process.handover import Handover, packed


async def test_a_value_that_was_sent_before_the_first_one_was_read_is_taken() -> None:
    reading, writing = os.pipe()
    taken: list[str] = []
    ended = asyncio.Event()
    try:
        os.write(writing, packed("first") + packed("early"))
        handover = Handover(reading)
        assert handover.first() == "first"
        handover.follow(taken.append, ended.set)
        assert taken == ["early"]
        os.write(writing, packed("late"))
        os.close(writing)
        await asyncio.wait_for(ended.wait(), 5)
        assert taken == ["early", "late"]
    finally:
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
