"""Redis Cluster, Sentinel and the brokers stand still, for longer than timeouts, leases and heartbeats last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.chaos.conftest import freeze_again_and_again
from tests.chaos.flow import COPIES_MAX, RATE, WINDOW, OpenFlow
from tests.devstack.fixtures import StartRedis, need
from tests.devstack.redis import RedisCluster, RedisSentinel, launch_sentinel

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

Launch = Callable[[int], RedisSentinel]


@pytest.fixture
def sentinel() -> Iterator[Launch]:
    """``sentinel(seconds)``: with Sentinel's own pace; a master that does not answer for so long is replaced."""
    with ExitStack() as opened:
        yield lambda seconds: opened.enter_context(need(lambda: launch_sentinel(seconds * 1000, hurried=False)))


@pytest.fixture(params=["yes", "no"])
def cluster(request: pytest.FixtureRequest, redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """A Redis Cluster that answers nothing while a node is away, and one that answers for its other shards."""
    for node in redis_cluster.nodes:
        node.command("CONFIG", "SET", "cluster-require-full-coverage", request.param)
    yield redis_cluster
    for node in redis_cluster.nodes:
        node.resume()
        node.command("CONFIG", "SET", "cluster-require-full-coverage", "yes")
    redis_cluster.wait_ok()


def test_a_node_of_a_cluster_that_stands_still_again_and_again_breaks_no_order_of_a_key(
    open_flow: OpenFlow, cluster: RedisCluster
) -> None:
    flow = open_flow(cluster.url)
    flow.start()
    freeze_again_and_again(cluster.nodes[0])
    verdict = flow.go_on(copies_max=2 * WINDOW)
    assert verdict.misordered == 0, str(verdict)


@pytest.mark.parametrize("frozen", ["master", "sentinel"])
def test_a_master_that_is_not_replaced_and_a_sentinel_alone_may_stand_still_without_a_loss_of_order(
    open_flow: OpenFlow, sentinel: Launch, frozen: str
) -> None:
    """While no Sentinel answers, a replaced master would go unnoticed, so nothing is delivered."""
    group = sentinel(60)
    flow = open_flow(group.url)
    flow.start()
    freeze_again_and_again(getattr(group, frozen))
    verdict = flow.go_on(copies_max=2 * WINDOW)
    assert verdict.misordered == 0, str(verdict)


def test_masters_that_stand_still_and_are_replaced_lose_nothing_that_a_replica_had_to_hold(
    open_flow: OpenFlow, sentinel: Launch
) -> None:
    """A promoted replica does not know of the last deliveries, nor of those from an old master that has not yielded."""
    group = sentinel(2)
    flow = open_flow(group.url, {"redis": {"durability": "replicas", "replicas": 1}})
    flow.start()
    for _ in range(2):
        old = group.master
        old.pause()
        group.wait_for_other_than(old)
        old.resume()
        group.wait_steady()
        flow.ledger.wait_arrivals(200)
    flow.go_on(copies_max=int(2 * RATE) + 2 * WINDOW)


def test_a_broker_that_stands_still_again_and_again_loses_nothing(open_flow: OpenFlow, start_redis: StartRedis) -> None:
    flow = open_flow(start_redis().url)
    flow.start()
    freeze_again_and_again(flow.broker)
    flow.go_on(COPIES_MAX)
