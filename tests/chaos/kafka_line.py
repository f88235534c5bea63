"""A Kafka line with a ledger, for the tests that kill something."""

from __future__ import annotations

from pathlib import Path

from tests.bridge_line import QUICK, merged
from tests.bridge_process import Bridge, Tables
from tests.chaos.kafka_ledger import KafkaLedger
from tests.devstack import kafka_admin
from tests.kafka_line import KafkaLine

PARTITIONS = 12


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

    def ledger(self, keys: int = 60) -> KafkaLedger:
        """Its ledger. It talks to the brokers directly, past any proxy of the bridges."""
        return self._open.enter_context(KafkaLedger(self.url, self.intake, self.topic, self.partitions, keys))

    def flowing(self, rate: float, instances: int = 1) -> tuple[KafkaLedger, list[Bridge]]:
        """A ledger and bridges that already deliver."""
        ledger = self.ledger()
        bridges = [self.bridge().start() for _ in range(instances)]
        for bridge in bridges:
            bridge.wait_ready()
        ledger.produce(rate, (0, 2000))
        ledger.wait_arrivals(500)
        return ledger, bridges
