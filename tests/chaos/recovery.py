"""What follows a fault: the bridges recover without help, deliver the rest, and have kept the promises."""

from __future__ import annotations

import time

from tests.bridge_line import LEASE_S, BridgeLine
from tests.bridge_process import Bridge
from tests.chaos.accountant import Accountant
from tests.chaos.verdict import Verdict
from tests.devstack.service import wait_for

#: Everything must have been delivered within this time after the last fault.
HEALED_S = LEASE_S + 10
#: A health sentence without an end of its own, such as a failed commit, expires after this time.
LINGERS_S = 5


def share(bridges: list[Bridge]) -> bool:
    """Whether each bridge drains some of the eight shards. They are dealt by their loads, so perhaps three and five."""
    shares = [len(bridge.report().get("shards", [])) for bridge in bridges]
    return all(shares) and sum(shares) == 8


def settled(line: BridgeLine, ledger: Accountant, deadline_s: float = 40.0) -> Verdict:
    """Wait until everything has arrived and the store is empty; returns the verdict."""
    ledger.wait_owed(deadline_s)
    wait_for(lambda: line.stored() == 0, "the store is empty", LEASE_S + 10)
    return ledger.settle(1, linger_s=0.3)


def go_on(
    line: BridgeLine,
    ledger: Accountant,
    bridges: list[Bridge],
    copies_max: int,
    healed_s: float = HEALED_S,
    more: int = 1000,
) -> Verdict:
    """Check that the bridges recover in time without help, deliver ``more`` messages and kept the promises."""
    healed = time.time()
    for bridge in bridges:
        bridge.wait_health("All well.", healed_s + LINGERS_S)
    ledger.wait_arrivals(more)
    ledger.stop_producing()
    verdict = settled(line, ledger, 60)
    verdict.assert_kept(copies_max)
    late_s = ledger.late_after(healed)
    print(f"late at most {late_s:.1f} s once all was well")
    assert late_s < healed_s
    assert all(bridge.running() for bridge in bridges)
    return verdict
