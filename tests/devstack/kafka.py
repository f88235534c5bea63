"""Apache Kafka: one node, broker and controller in one JVM (KRaft).

Clients need no Java: only the broker does.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.devstack import kafka_admin
from tests.devstack.container import ContainerRunner, engine_answers, require_engine
from tests.devstack.kafka_java import QUICK, VERSION, KafkaInstall, find_place, run_tool
from tests.devstack.process import Launch, ProcessRunner
from tests.devstack.service import Service, clean_env, find_or_start, free_ports, machine_lock, new_folder

URL_VARIABLE = "POSTDATE_TEST_KAFKA"
IMAGE = f"apache/kafka:{VERSION}"
HEAP = "-Xmx512m"
PROBE_S = 5.0
# Any 16 bytes in base64: the controller's address alone separates the clusters.
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"

# Topics are made by those who want them. A group would wait three seconds for more members before its first
# rebalance, and no member could be given up for dead within six. A broker that was killed is not let in again until
# it has been given up for dead, and nor has what it led another leader: three seconds instead of nine. The cleaner
# would take 128 MiB at the start.
SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "log.cleaner.dedupe.buffer.size": "4194304",
}
# Transactions, offsets and share groups would be kept three times, on brokers that a single node does not have.
ALONE: Mapping[str, str] = {
    "node.id": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d %p %m (%c)%n
"""


class Kafka(Service):
    """Its `url` is what clients call bootstrap servers: host and port."""

    name = "kafka"
    #: A port that it listens on, and another one under which it sends those there who came by the first: a proxy's.
    detour: tuple[int, int] | None = None
    #: Where its partitions are, where that is a folder of this machine.
    data: Path | None = None

    @classmethod
    def in_place(cls, java: tuple[str, ...], tool: tuple[str, ...], settings: Mapping[str, str], port: int) -> Self:
        """A node with a data folder of its own, not yet started.

        `java` and `tool` are commands that lack only a main class and its arguments, for the broker and for the tool
        that prepares its folder; `settings` name every port that it listens on.
        """
        folder = new_folder(f"kafka-{port}")
        file, logging = folder / "server.properties", folder / "log4j2.properties"
        wanted = {**SETTINGS, "log.dirs": str(folder / "data"), **settings}
        file.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
        logging.write_text(LOGGING)
        env, log = clean_env(), f"-Dlog4j2.configurationFile={logging}"
        runner = ProcessRunner(Launch((*java, log, "kafka.Kafka", str(file)), folder, env))
        run_tool((*tool, log, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)), env)
        node = cls(f"127.0.0.1:{port}", runner)
        node.data = Path(wanted["log.dirs"])
        return node

    @classmethod
    def in_docker(cls) -> Self:
        require_engine()
        port = free_ports(1)[0]
        inside = {
            "controller.quorum.voters": "1@localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        settings = {**SETTINGS, **ALONE, **inside}
        env = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}
        return cls(f"127.0.0.1:{port}", ContainerRunner(IMAGE, {9092: port}, env=env)).start_new()

    def probe(self) -> None:
        if self.owned:
            # A bare connection first: the client would go on trying by itself, and not notice a broker that has ended.
            host, _, port = self.url.rpartition(":")
            socket.create_connection((host, int(port)), timeout=PROBE_S).close()
        if not kafka_admin.nodes(self.url, PROBE_S):
            raise ConnectionError("the controller has not let its broker in yet")

    def _empty(self) -> None:
        kafka_admin.delete_topics(self.url, sorted(kafka_admin.topics(self.url)))
        kafka_admin.delete_groups(self.url)


def listening(port: int, controller_port: int) -> dict[str, str]:
    """The settings that name the ports of a node, on loopback."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }


def find(*options: str) -> Kafka:
    """Given by URL, else Kafka from Docker, else from Maven's jars on this machine's Java, which gets the options.

    Without `QUICK` it takes longer to start and is then as fast as an operator's, for those who measure.
    """
    return find_or_start(URL_VARIABLE, Kafka, [Kafka.in_docker, lambda: launch(*options)])


def prepare() -> None:
    """Fetches what a first run has to fetch, starts nothing: it may take longer than a test is given."""
    if not os.environ.get(URL_VARIABLE) and not engine_answers():
        ready_place()


def launch(*options: str, settings: Mapping[str, str] | None = None) -> Kafka:
    place = ready_place()
    return _alone(place.command(HEAP, *options), place, settings).start_new()


def _alone(java: tuple[str, ...], place: KafkaInstall, own: Mapping[str, str] | None = None) -> Kafka:
    port, controller_port, inner, outer = free_ports(4)
    plain = listening(port, controller_port)
    settings = {
        **ALONE,
        "listeners": f"{plain['listeners']},DETOUR://127.0.0.1:{inner}",
        "advertised.listeners": f"{plain['advertised.listeners']},DETOUR://127.0.0.1:{outer}",
        "listener.security.protocol.map": f"{SETTINGS['listener.security.protocol.map']},DETOUR:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        **(own or {}),
    }
    node = Kafka.in_place(java, place.command(*QUICK), settings, port)
    node.detour = inner, outer
    return node


def ready_place() -> KafkaInstall:
    """Java and the jars, and the classes of a broker that was started and stopped for this alone, once."""
    place = find_place()
    with machine_lock(place.classes.name):
        if not place.classes.exists():
            unfinished = place.classes.with_suffix(".unfinished")
            with _alone(place.recording(unfinished, HEAP), place).start_new() as broker:
                broker.stop()
            unfinished.rename(place.classes)
    return place
