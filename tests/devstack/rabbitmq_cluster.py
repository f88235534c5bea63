"""RabbitMQ nodes of this machine that form a cluster, always our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.devstack import rabbitmq, rabbitmq4
from tests.devstack.rabbitmq import RabbitInstall, RabbitMQ
from tests.devstack.service import free_ports, new_folder, wait_for


class RabbitCluster:
    """The nodes, all running. A test may kill and pause them."""

    def __init__(self, nodes: Sequence[RabbitMQ]) -> None:
        self.nodes = tuple(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with ExitStack() as closing:
            for node in self.nodes:  # the first, which has epmd beside it, is closed last
                closing.callback(node.close)

    @property
    def url(self) -> str:
        """Every node, in one URL."""
        who, _, _ = self.nodes[0].url.partition("@")
        places = [node.url.partition("@")[2].partition("/")[0] for node in self.nodes]
        return f"{who}@{','.join(places)}/%2F"

    def join(self) -> Self:
        """Make one cluster of them."""
        first = self.nodes[0].node_name
        for node in self.nodes[1:]:
            node.ctl("stop_app")
            node.ctl("join_cluster", first)
            node.ctl("start_app")
        wait_for(lambda: all(node.wait_ready() for node in self.nodes), "all nodes answer", 60)
        return self


def launch_cluster(version: str, size: int = 3) -> RabbitCluster:
    """Nodes of RabbitMQ "3" or "4"."""
    home: Callable[[], tuple[RabbitInstall, Path]] = rabbitmq4.chroot_home if version == "4" else _home
    epmd_port = free_ports(1)[0]
    nodes: list[RabbitMQ] = []
    with ExitStack() as started:
        for number in range(size):
            place, folder = home()
            nodes.append(RabbitMQ.in_place(place, folder, epmd=(epmd_port, number == 0)))
            started.callback(nodes[-1].close)
        cluster = RabbitCluster(nodes).join()
        started.pop_all()
    return cluster


def _home() -> tuple[RabbitInstall, Path]:
    return rabbitmq.find_place(), new_folder("rabbitmq")
