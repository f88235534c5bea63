"""The whole way on a Redis Cluster and on Sentinel, through a failover under load."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from bridge.parking.identity import shard_of
from tests.bridge_process import Tables
from tests.chaos.conftest import OpenLedger, OpenLine
from tests.chaos.recovery import settled
from tests.delay_line import Line, delay
from tests.devstack.fixtures import need
from tests.devstack.redis import Redis, RedisCluster, RedisSentinel, launch_sentinel
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

IN_FLIGHT = 200
SMALL: Tables = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}, "redis": {"timeout": "1s"}}
RATE, LONG_RATE = 500.0, 2000.0
FREEZE_RATE = 200


def test_the_whole_way_on_a_cluster_with_two_instances(
    open_line: OpenLine, open_ledger: OpenLedger, redis_cluster_url: str
) -> None:
    line = open_line(store_url=redis_cluster_url)
    ledger = open_ledger(line)
    first, second = line.bridge().start(), line.bridge().start()
    ledger.produce(RATE, (0, 1000), count=1000)
    ledger.produced()
    settled(line, ledger).assert_kept(copies_max=0)
    assert [first.terminate(), second.terminate()] == [0, 0]


@pytest.mark.parametrize("how", ["killed", pytest.param("asked", marks=pytest.mark.long)])
def test_a_failover_under_load_loses_nothing_that_a_replica_had_to_hold(
    open_line: OpenLine, open_ledger: OpenLedger, redis_sentinel: RedisSentinel, how: str
) -> None:
    settings = {**SMALL, "redis": {"timeout": "1s", "durability": "replicas", "replicas": 1}}
    line = open_line(settings, store_url=redis_sentinel.url)
    ledger = open_ledger(line)
    bridge = line.bridge().start()
    ledger.produce(RATE, (0, 1500))
    ledger.wait_arrivals(200)
    old = redis_sentinel.master
    if how == "killed":
        redis_sentinel.kill_master()
        old.start()
    else:
        redis_sentinel.failover()
    redis_sentinel.wait_steady()
    ledger.wait_arrivals(500, 40)
    ledger.stop_producing()
    # Sentinel may make the old one master again, which lacks the latest moves, and postdate says so.
    health = [""]

    def well() -> bool:
        health[:] = [bridge.health()]
        return bridge.is_ready() or "No parked message seems to be lost" in health[0]

    try:
        wait_for(well, "all is well again", 60)
    except TimeoutError:
        pytest.fail(health[0])
    # A promoted replica has not heard of the last deliveries: copies, as many as the old master recorded alone.
    settled(line, ledger, 60).assert_kept(copies_max=1000)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_failover_after_the_other_under_full_load_loses_nothing(
    open_line: OpenLine, open_ledger: OpenLedger, redis_sentinel: RedisSentinel
) -> None:
    settings = {"redis": {"timeout": "1s", "durability": "replicas", "replicas": 1}}
    line = open_line(settings, store_url=redis_sentinel.url)
    ledger = open_ledger(line)
    line.start()
    ledger.produce(LONG_RATE, (0, 3000))
    for _ in range(4):
        ledger.wait_arrivals(3000, 60)
        old = redis_sentinel.master
        redis_sentinel.kill_master()
        old.start()
        redis_sentinel.wait_steady()
    ledger.wait_arrivals(3000, 60)
    ledger.stop_producing()
    settled(line, ledger, 120).assert_kept()


@pytest.fixture
def open_cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """One whose nodes answer as long as they can, though another is away."""
    coverage = ("CONFIG", "SET", "cluster-require-full-coverage")
    for node in redis_cluster.nodes:
        node.command(*coverage, "no")
    yield redis_cluster
    for node in redis_cluster.nodes:
        node.resume()
        node.command(*coverage, "yes")
    redis_cluster.wait_ok()


def shards_on(node: Redis, line: Line) -> set[int]:
    """The shards of this line whose keys are on a node; the others it does not take."""

    def has(shard: int) -> bool:
        try:
            node.command("EXISTS", f"{{{line.name}:{shard}}}:due")
        except ResponseError:
            return False
        return True

    return {shard for shard in range(8) if has(shard)}


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_frozen_node_of_a_cluster_holds_up_its_own_shards_alone(
    open_line: OpenLine, open_cluster: RedisCluster
) -> None:
    line = open_line(store_url=open_cluster.url)
    frozen = max(open_cluster.nodes, key=lambda node: len(shards_on(node, line)))
    cold = shards_on(frozen, line)
    bridge = line.start()
    bodies = [b"%d" % number for number in range(600)]
    for number, body in enumerate(bodies):
        line.publish(Props([delay(6000 + number * 15)], {"delivery_mode": b"\2"}), body, b"key." + body)
    got = line.receive(50)
    frozen.pause()
    began = time.time()
    got += line.receive_until(len(bodies) - len(got), 7)
    frozen.resume()
    ended = time.time()
    got += line.receive(len(bodies) - len(got), 30)
    assert sorted(message.body for message in got) == sorted(bodies), "each of them once"
    late = [(shard in cold, at - due) for shard, at, due in map(fate, got) if began < due < ended - 1]
    assert min(at - due for _, at, due in map(fate, got)) >= -0.001
    healthy, held_up = (sorted(seconds for cold, seconds in late if cold is wanted) for wanted in (False, True))
    print(f"healthy {len(healthy)}: max {healthy[-1]:.3f} s, frozen {len(held_up)}: max {held_up[-1]:.3f} s")
    assert held_up[-1] > 3
    assert healthy[-1] < 1.0
    bridge.wait_health("All well.")


def fate(message: Message) -> tuple[int, float, float]:
    """Its shard, when it came, and when it was due."""
    headers = {entry[1 : 1 + entry[0]]: entry[2 + entry[0] :] for entry in parts(message.properties).headers}
    return shard_of(headers[b"x-delay-id"][-20:]), message.at, int.from_bytes(headers[b"x-delay-due"][-8:]) / 1000


@pytest.fixture
def calm_sentinel() -> Iterator[RedisSentinel]:
    """Sentinel with its own pace, as in production; a master that does not answer for two seconds is dead."""
    with need(lambda: launch_sentinel(down_after_ms=2000, hurried=False)) as group:
        yield group


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("durability", "lost_max"), [("everysec", FREEZE_RATE), ("replicas", 0)])
def test_a_master_that_freezes_for_four_seconds_costs_a_second_of_traffic_at_most(
    open_line: OpenLine, open_ledger: OpenLedger, calm_sentinel: RedisSentinel, durability: str, lost_max: int
) -> None:
    """Back again, it takes itself for the master for some ten seconds; what is parked there is thrown away."""
    line = open_line({"redis": {"durability": durability, "replicas": 1}}, store_url=calm_sentinel.url)
    ledger = open_ledger(line)
    bridge = line.start()
    ledger.produce(FREEZE_RATE, (0, 2000))
    ledger.wait_arrivals(2 * FREEZE_RATE)
    old = calm_sentinel.master
    old.pause()
    time.sleep(4)
    old.resume()
    ledger.wait_arrivals(20 * FREEZE_RATE, 60)
    ledger.stop_producing()
    verdict = settled(line, ledger)
    print(verdict)
    assert len(verdict.lost) <= lost_max, str(verdict)
    assert verdict.copies <= FREEZE_RATE, str(verdict)
    assert [*verdict.early, *verdict.mangled] == [], str(verdict)
    assert verdict.strangers + verdict.copies_with_another_id == 0, str(verdict)
    assert f"master=127.0.0.1:{calm_sentinel.master.port}" in bridge.log()
    assert bridge.running()
