"""A Kafka line with a ledger, for the tests that kill something."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bridge_line import LEASE_S, QUICK, merged
from tests.bridge_process import Bridge, Tables
from tests.chaos.kafka_ledger import KafkaLedger
from tests.chaos.verdict import Verdict
from tests.devstack import kafka_admin
from tests.devstack.service import wait_for
from tests.kafka_line import KafkaLine

PARTITIONS = 12
#: Everything must have been delivered within this time after the last fault.
HEALED_S = LEASE_S + 10
#: A health sentence without an end of its own, such as a failed commit, expires after this time.
LINGERS_S = 5


class LedgerLine(KafkaLine):
    """A Kafka line with a store, whose ledger produces and consumes."""

    def __init__(
        self,
        url: str,
        store_url: str,
        folder: Path,
        settings: Tables | None = None,
        broker_url: str = "",
        partitions: int = PARTITIONS,
    ) -> None:
        """``broker_url``: how the bridges reach the broker, if it is another way than the ledger's."""
        own: Tables = {
            "redis": {"timeout": "1s"},
            "kafka": {"bootstrap_servers": broker_url or url, "session_timeout": "2s"},
            "log": {"format": "text"},
        }
        super().__init__(url, folder, merged(merged(own, QUICK), settings or {}), store_url, partitions)
        kafka_admin.create_topic(url, partitions, name=self.intake)

    def ledger(self) -> KafkaLedger:
        """Its ledger. It talks to the brokers directly, past any proxy of the bridges."""
        return self._open.enter_context(KafkaLedger(self.url, self.intake, self.topic, self.partitions))

    def flowing(self, rate: float, instances: int = 1) -> tuple[KafkaLedger, list[Bridge]]:
        """A ledger and bridges that already deliver."""
        ledger = self.ledger()
        bridges = [self.bridge().start() for _ in range(instances)]
        for bridge in bridges:
            bridge.wait_ready()
        ledger.produce(rate, (0, 2000))
        ledger.wait_arrivals(500)
        return ledger, bridges

    def settled(self, ledger: KafkaLedger, deadline_s: float = 40.0) -> Verdict:
        """Wait until everything has arrived and the store is empty; returns the verdict."""
        ledger.settle(deadline_s, linger_s=0)
        wait_for(lambda: self.stored() == 0, "the store is empty", LEASE_S + 10)
        return ledger.settle(1, linger_s=0.3)


def go_on(
    line: LedgerLine,
    ledger: KafkaLedger,
    bridges: list[Bridge],
    copies_max: int,
    healed_s: float = HEALED_S,
    more: int = 1000,
) -> None:
    """Check that the bridges recover in time without help, deliver ``more`` records and kept the promises."""
    healed = time.time()
    for bridge in bridges:
        bridge.wait_health("All well.", healed_s + LINGERS_S)
    ledger.wait_arrivals(more)
    ledger.stop_producing()
    line.settled(ledger, 60).assert_kept(copies_max)
    late_s = ledger.late_after(healed)
    print(f"late at most {late_s:.1f} s once all was well")
    assert late_s < healed_s
    assert all(bridge.running() for bridge in bridges)
