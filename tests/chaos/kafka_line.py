"""A delayed path of a test's own on Kafka: two topics, and bridges between them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bridge_process import RUN, Bridge, Tables, store_client
from tests.chaos.kafka_ledger import KafkaLedger
from tests.chaos.verdict import Verdict
from tests.delay_line import LEASE_S, QUICK, merged
from tests.devstack import kafka_admin
from tests.devstack.service import wait_for

PARTITIONS = 12
SHARDS = 8
#: So long after the last fault everything must have been delivered.
HEALED_S = LEASE_S + 10
#: A sentence that nobody takes back, as that of a commit which failed, is forgotten after so long.
LINGERS_S = 5


class KafkaLine:
    """One route ``orders`` from the topic ``intake`` to the topic ``target``."""

    def __init__(
        self,
        url: str,
        store_url: str,
        folder: Path,
        settings: Tables | None = None,
        broker_url: str = "",
        partitions: int = PARTITIONS,
    ) -> None:
        self.url, self.store_url, self.folder, self._partitions = url, store_url, folder, partitions
        self.intake = kafka_admin.create_topic(url, partitions)
        self.target = kafka_admin.create_topic(url, partitions)
        self.name = f"c{random.getrandbits(32):x}"
        own: Tables = {
            "redis": {"url": store_url, "key_prefix": self.name, "timeout": "1s"},
            "kafka": {"bootstrap_servers": broker_url or url, "group": self.name, "session_timeout": "2s"},
            "log": {"format": "text"},
            "routes": {"orders": {"broker": "kafka", "intercept": self.intake, "deliver_to": self.target}},
        }
        self.settings = merged(merged(own, QUICK), settings or {})
        self._open = ExitStack()
        self._bridges = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def delete(self) -> None:
        """The topics go; the brokers must be there."""
        kafka_admin.delete_topics(self.url, [self.intake, self.target])

    def ledger(self) -> KafkaLedger:
        """Its accountant; it talks to the brokers itself, whatever stands between the bridge and them."""
        return self._open.enter_context(KafkaLedger(self.url, self.intake, self.target, self._partitions))

    def bridge(self, settings: Tables | None = None, command: Sequence[str] = RUN) -> Bridge:
        """A bridge that is not started yet; it ends with the line."""
        self._bridges += 1
        wanted = merged(self.settings, settings or {})
        return self._open.enter_context(Bridge(self.folder, wanted, command, f"{self.name}-{self._bridges}"))

    def flowing(self, rate: float, instances: int = 1) -> tuple[KafkaLedger, list[Bridge]]:
        """Bridges in the middle of their work."""
        ledger = self.ledger()
        bridges = [self.bridge().start() for _ in range(instances)]
        for bridge in bridges:
            bridge.wait_ready()
        ledger.produce(rate, (0, 2000))
        ledger.wait_arrivals(500)
        return ledger, bridges

    def stored(self) -> int:
        """Messages in the store, whatever their state."""
        with store_client(self.store_url) as client:
            return sum(int(client.hlen(f"{{{self.name}.kafka:{shard}}}:msg")) for shard in range(SHARDS))

    def dead(self) -> list[str]:
        """The reasons of the dead letters."""
        with store_client(self.store_url) as client:
            whys = [client.hvals(f"{{{self.name}.kafka:{shard}}}:why") for shard in range(SHARDS)]
        return [why.decode() for some in whys for why in some]

    def settled(self, ledger: KafkaLedger, deadline_s: float = 40.0) -> Verdict:
        """The verdict when everything has arrived and nothing is left in the store that might still come."""
        ledger.settle(deadline_s, linger_s=0)
        wait_for(lambda: self.stored() == 0, "the store is empty", LEASE_S + 10)
        return ledger.settle(1, linger_s=0.3)


def go_on(
    line: KafkaLine,
    ledger: KafkaLedger,
    bridges: list[Bridge],
    copies_max: int,
    healed_s: float = HEALED_S,
    more: int = 1000,
) -> None:
    """They recover alone and in time, so many ``more`` come, and the promises were kept."""
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
