"""A route changes its mode and back, under load and instance by instance: nothing is lost or early."""

from __future__ import annotations

import time

import pytest

from tests.bridge_line import merged
from tests.bridge_process import Tables
from tests.chaos.flow import WINDOW, Flow, OpenFlow
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line
from tests.devstack.fixtures import StartRedis
from tests.level_line import LEVELS

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

MODES = ("levels", "redis", "levels", "redis")
QUICK_LEVELS = merged(LEVELS, {"levels": {"alone_after": "2s"}})
#: What a message has that waited in a level after the last instance in mode levels: RabbitMQ delivers it by itself.
KEPT = (
    *(b"x-delay", b"x-deliver-at", b"x-death"),
    *(b"x-%b-death-%b" % (which, what) for which in (b"first", b"last") for what in (b"exchange", b"queue", b"reason")),
)


def change(flow: Flow, mode: str, killed: bool) -> None:
    """Replace the instances by others with this mode. On RabbitMQ, producers then go to another exchange."""
    line, route = flow.line, {"mode": mode}
    if isinstance(line, Line) and isinstance(flow.ledger, Ledger):
        route["intercept"] = f"{line.name}.{mode}.delay"
        line.setup(settings_with(flow, route))
    for number, old in enumerate(flow.bridges):
        if killed:
            old.kill()
        else:
            assert old.terminate() == 0
        new = flow.bridges[number] = line.bridge(settings_with(flow, route)).start()
        new.wait_log("started")
        if isinstance(flow.ledger, Ledger):
            flow.ledger.front = route["intercept"]


def settings_with(flow: Flow, route: Tables) -> Tables:
    return merged(QUICK_LEVELS, {"routes": {flow.route: route}})


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_route_that_changes_its_mode_again_and_again_loses_nothing(
    open_flow: OpenFlow, start_redis: StartRedis, killed: bool
) -> None:
    flow = open_flow(start_redis().url)
    flow.start((0, 1900))
    if isinstance(flow.ledger, Ledger):
        flow.ledger.added += KEPT
    for mode in MODES:
        change(flow, mode, killed)
        changed = time.time()
        flow.ledger.wait_arrivals(1000)
        print(f"mode {mode}: late at most {flow.ledger.late_after(changed):.1f} s")
    flow.ledger.stop_producing()
    verdict = settled(flow.line, flow.ledger)
    if killed:  # each mode gives a Kafka record another id
        verdict.copies_with_another_id = 0
    verdict.assert_kept(copies_max=len(MODES) * 2 * 2 * WINDOW if killed else 0)
