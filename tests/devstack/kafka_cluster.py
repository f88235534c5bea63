"""Three Kafka nodes, each broker and controller, of which one may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from tests.devstack import kafka_admin
from tests.devstack.kafka import HEAP, Kafka, listening, ready_place
from tests.devstack.kafka_java import QUICK
from tests.devstack.service import free_ports, wait_for

NODES = 3

# Every record is on all nodes and acknowledged by two.
SETTINGS: Mapping[str, str] = {
    "default.replication.factor": str(NODES),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(NODES),
    "transaction.state.log.replication.factor": str(NODES),
    "transaction.state.log.min.isr": "2",
}


class KafkaCluster:
    """Nodes by number, from 1. Each is an ordinary `Kafka` that may be killed, paused and started again."""

    def __init__(self, nodes: Sequence[Kafka]) -> None:
        self.nodes = dict(enumerate(nodes, start=1))
        #: The addresses of all nodes, whichever are running.
        self.url = ",".join(node.url for node in nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Starts what is not running, all at once: a node alone waits for a majority. Returns when all take part."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Kafka.start, self.nodes.values()))
        self.wait_ok()
        return self

    def ok(self) -> bool:
        """Every node knows all the others, and every replica of every partition is in sync."""
        return all(self._node_ok(node) for node in self.nodes.values())

    def _node_ok(self, node: Kafka) -> bool:
        seen = kafka_admin.client(node.url).list_topics(timeout=kafka_admin.TIMEOUT_S)
        partitions = [partition for topic in seen.topics.values() for partition in topic.partitions.values()]
        return set(seen.brokers) == set(self.nodes) and all(len(each.isrs) == NODES for each in partitions)

    def wait_ok(self, deadline_s: float = 60.0) -> None:
        wait_for(self.ok, "the Kafka cluster is whole, and its replicas are in sync", deadline_s)

    def kill_node(self, number: int) -> None:
        """SIGKILL; what it led has another leader within seconds."""
        self.nodes[number].kill()

    def start_node(self, number: int) -> None:
        """Returns when the node takes requests; its replicas may still be catching up, see `wait_ok`."""
        self.nodes[number].start()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the running node that leads the partition.

        Raises:
            TimeoutError: there has been none for a minute.
        """
        found: list[int] = []

        def has_leader() -> bool:
            number: int = kafka_admin.partitions(self.url, topic)[partition].leader
            found.append(number)
            return number in self.nodes and self.nodes[number].running()

        wait_for(has_leader, f"{topic} {partition} has a leader", 60.0)
        return found[-1]

    def heal(self) -> None:
        """All nodes are running and whole again, whatever a test has done to them."""
        for node in self.nodes.values():
            node.resume()
        self.start()

    def close(self) -> None:
        # All at once: the last of a majority that is gone could not leave in order, and the data are not kept.
        for node in self.nodes.values():
            node.kill()
        for node in self.nodes.values():
            node.close()


def launch_cluster() -> KafkaCluster:
    place = ready_place()
    ports, controller_ports = free_ports(NODES), free_ports(NODES)
    numbered = list(enumerate(controller_ports, start=1))
    voters = {"controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{port}" for number, port in numbered)}

    def node(number: int) -> Kafka:
        own = {"node.id": str(number), **listening(ports[number - 1], controller_ports[number - 1])}
        # Nobody measures what this cluster can do.
        java = tool = place.command(*QUICK, HEAP)
        return Kafka.in_place(java, tool, {**SETTINGS, **voters, **own}, ports[number - 1])

    with ThreadPoolExecutor(NODES) as pool:
        cluster = KafkaCluster(list(pool.map(node, range(1, NODES + 1))))
    try:
        return cluster.start()
    except BaseException:
        cluster.close()
        raise


def prepare() -> None:
    """Fetches what a first run has to fetch; a cluster is made of processes of this machine in any case."""
    ready_place()
