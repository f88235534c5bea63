"""How long postdate waits before it connects again."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from bridge.core.errors import BrokerUnavailable
from bridge.telemetry import reconnect as reconnect_module
from bridge.telemetry.health import WELL, Health
from bridge.telemetry.reconnect import FIRST_S, MAX_S, Reconnect, keep_connected, reconnect_wait_s
from bridge.telemetry.subject import INTAKE, Subject
from tests.unit.house import House, turns


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The failures in a row of each wait, which ends at once."""
    counted: list[int] = []

    def wait_s(failures: int, spread: float) -> float:
        counted.append(failures)
        return 0.0

    monkeypatch.setattr(reconnect_module, "reconnect_wait_s", wait_s)
    return counted


def test_waits_double_up_to_a_few_seconds() -> None:
    assert [reconnect_wait_s(failures, 0.0) for failures in (0, 1, 2, 100)] == [
        FIRST_S,
        2 * FIRST_S,
        4 * FIRST_S,
        MAX_S,
    ]
    assert reconnect_wait_s(100, 1.0) == MAX_S / 2


async def test_sessions_that_work_and_end_at_once_are_waited_for_longer_and_longer(failures: list[int]) -> None:
    reconnect = Reconnect(steady_s=1000)
    for _ in range(4):
        reconnect.worked()
        await reconnect.wait()
    assert failures == [0, 1, 2, 3]


async def test_after_a_long_outage_the_first_session_that_ends_at_once_costs_the_shortest_wait(
    failures: list[int],
) -> None:
    reconnect = Reconnect(steady_s=1000)
    for _ in range(3):
        await reconnect.wait()
    reconnect.worked()
    await reconnect.wait()
    assert failures == [0, 1, 2, 0]


async def test_after_a_session_that_held_the_first_wait_is_the_shortest(failures: list[int]) -> None:
    reconnect = Reconnect()
    await reconnect.wait()
    await reconnect.wait()
    reconnect.worked()
    await reconnect.wait()
    await reconnect.wait()
    assert failures == [0, 1, 0, 1]


async def test_a_server_that_answers_one_connection_is_asked_by_the_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise "RabbitMQ does not answer" stands for seconds beside deliveries."""
    monkeypatch.setattr(reconnect_module, "reconnect_wait_s", lambda *_: 60.0)
    health, intake, there = Health(), Subject("rabbitmq", INTAKE), False

    async def session(reconnect: Reconnect) -> None:
        if not there:
            raise BrokerUnavailable("RabbitMQ does not answer")
        reconnect.worked()
        health.say(intake, "")
        await asyncio.Event().wait()

    running = asyncio.create_task(keep_connected(session, health, intake, "nothing is taken from RabbitMQ"))
    await turns()
    there = True
    health.attempted(Subject("kafka", INTAKE), True)
    await turns()
    assert health.sentence() == "nothing is taken from RabbitMQ: RabbitMQ does not answer."
    health.attempted(Subject("rabbitmq", "publish"), True)
    await turns()
    assert health.sentence() == WELL
    running.cancel()


@pytest.mark.usefixtures("leaping_time")
async def test_a_broker_that_is_back_is_noticed_within_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect_module, "reconnect_wait_s", lambda *_: MAX_S)
    loop, tries_s = asyncio.get_running_loop(), list[float]()

    async def session(_: Reconnect) -> None:
        tries_s.append(loop.time())
        raise BrokerUnavailable("RabbitMQ does not answer")

    intake = Subject("rabbitmq", INTAKE)
    running = asyncio.create_task(keep_connected(session, Health(), intake, "nothing is taken from RabbitMQ"))
    while len(tries_s) < 3:  # noqa: ASYNC110 (time leaps)
        await asyncio.sleep(0.1)
    running.cancel()
    assert tries_s[2] - tries_s[0] == pytest.approx(4.0, abs=0.2)


@pytest.mark.usefixtures("leaping_time")
async def test_a_store_that_answers_one_loop_is_asked_by_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise "nothing is parked" is said, and true, for seconds after the repair."""
    monkeypatch.setattr(reconnect_module, "reconnect_wait_s", lambda *_: 60.0)
    house = House()
    for body in "ab":
        house.publish(body)
        await house.park()
        await house.claimer.once()  # the second one is for the settler, while the store is away
    house.publish("c")

    house.memory.away = "Redis does not answer"
    loops = (house.parker, house.claimer, house.settler, house.members())
    running = [asyncio.create_task(loop.run()) for loop in loops]
    async with asyncio.timeout(5):
        while len(house.health.troubles()) < len(loops):  # noqa: ASYNC110 (the loops decide when)
            await asyncio.sleep(0.01)
    house.memory.away = ""
    async with asyncio.timeout(5):
        while house.health.troubles() or len(house.sink.published) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


@pytest.mark.usefixtures("leaping_time")
async def test_two_sessions_that_a_broker_ends_at_once_do_not_wake_each_other_without_a_pause() -> None:
    attempts = 0

    async def ended_at_once(reconnect: Reconnect) -> NoReturn:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0)
        reconnect.worked()
        raise BrokerUnavailable("the broker closed the connection")

    health = Health()
    sessions = [
        asyncio.create_task(keep_connected(ended_at_once, health, Subject("rabbitmq", part), "nothing is done"))
        for part in ("intake", "publish")
    ]
    await asyncio.sleep(0.3)
    for session in sessions:
        session.cancel()
    assert attempts < 20
