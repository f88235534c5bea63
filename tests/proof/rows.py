"""Each row of the proof: a fault, the promise that holds through it, and the tests that show it.

``promise`` is a sentence or a table row of deploy/promises.md or deploy/high-availability.md, word by word; a test
holds both pages and this table together.
"""

from __future__ import annotations

from typing import NamedTuple

EARLY = "No message leaves before its due moment"
PARKED = "only when it is parked as durably as"
CONFIRMED = "A message leaves the store only when the broker has confirmed it"
BYTES = "Body, properties and headers arrive as the producer wrote them"
ORDER = "leave in the order they came, with several instances too"
DEAD = "that message becomes a dead letter. The others pass"
SILENCE = "say what is wrong"
ONCE = 'release = "transactional"'
SAME_ID = "Every copy carries the same `x-delay-id`"


class Row(NamedTuple):
    """A fault, its promise, and tests: a file of tests/, and the names in it ("" for all)."""

    server: str
    fault: str
    promise: str
    tests: tuple[str, ...]


_BRIDGE, _KAFKA_BRIDGE = "chaos/test_bridge_dies.py", "chaos/test_kafka_bridge_dies.py"
_REDIS, _RABBIT, _KAFKA = "chaos/test_redis_dies.py", "chaos/test_rabbitmq_dies.py", "chaos/test_kafka_dies.py"
_CLUSTER, _CLOCK, _FREEZES = "chaos/test_cluster_and_sentinel.py", "chaos/test_clock_steps.py", "chaos/test_freezes.py"
_RABBIT_CLUSTER = "chaos/test_rabbitmq_cluster.py"
_KAFKA_STORAGE = "chaos/test_kafka_storage.py"
_KAFKA_STORE = "chaos/test_kafka_store_dies.py"

ROWS = (
    Row("postdate", "kill -9 at each step", CONFIRMED, (f"{_BRIDGE}::test_a_death_at_this_step",)),
    Row("postdate", "kill -9 at each step, Kafka", SAME_ID, (f"{_KAFKA_BRIDGE}::test_a_death_at_this_step",)),
    Row("postdate", "kill -9 at random moments", PARKED, (f"{_BRIDGE}::test_kills_at_random_moments",)),
    Row("postdate", "50 kills under full load", PARKED, (f"{_BRIDGE}::test_fifty_kills",)),
    Row("postdate", "kills under full load, Kafka", PARKED, (f"{_KAFKA_BRIDGE}::test_kills_at_random",)),
    Row("postdate", "SIGTERM under load", "an instance stops (SIGTERM)", (f"{_BRIDGE}::test_sigterm_under_load",)),
    Row(
        "postdate",
        "one of two killed",
        "| postdate | another instance takes over",
        (f"{_BRIDGE}::two_instances_is_killed",),
    ),
    Row("postdate", "one of two killed, Kafka", "| an instance dies", (f"{_KAFKA_BRIDGE}::test_when_one_of_two",)),
    Row(
        "postdate",
        "one of two frozen, beyond its leases",
        "| an instance freezes |",
        (f"{_BRIDGE}::test_when_one_of_two_instances_freezes", f"{_BRIDGE}::test_a_zombie"),
    ),
    Row(
        "postdate",
        "frozen beyond session and leases, Kafka",
        "an instance dies or freezes",
        (f"{_KAFKA_BRIDGE}::test_one_that_stands_still",),
    ),
    Row("postdate", "frozen with deliveries on their way", SAME_ID, (f"{_BRIDGE}::test_what_was_on_its_way",)),
    Row("postdate", "instances join and leave", ORDER, (f"{_KAFKA_BRIDGE}::test_an_instance_that_joins",)),
    Row("postdate", "two instances share a topic", ORDER, ("chaos/test_kafka_shares.py",)),
    Row("postdate", "the clock of its machine jumps", "| the machine's clock jumps |", ("unit/test_clock.py",)),
    Row("RabbitMQ", "killed", "| RabbitMQ or Kafka | postdate waits", (f"{_RABBIT}::test_a_killed_broker",)),
    Row("RabbitMQ", "silent connection", CONFIRMED, (f"{_RABBIT}::test_a_broker_that_falls_silent",)),
    Row("RabbitMQ", "stands still again and again", PARKED, (f"{_FREEZES}::test_a_broker_that_stands_still",)),
    Row("RabbitMQ", "connections closed by the operator", PARKED, (f"{_RABBIT}::test_connections_that_the",)),
    Row("RabbitMQ", "memory and disk alarm", SILENCE, (f"{_RABBIT}::test_an_alarm_stops",)),
    Row("RabbitMQ", "faults during an alarm", PARKED, ("chaos/test_rabbitmq_alarms.py",)),
    Row("RabbitMQ", "target queue deleted", CONFIRMED, (f"{_RABBIT}::test_a_target_queue",)),
    Row("RabbitMQ", "intake queue deleted", "A deleted intake queue", (f"{_RABBIT}::test_an_intake_queue",)),
    Row(
        "RabbitMQ",
        "its node dies",
        "| a node dies |",
        (f"{_RABBIT_CLUSTER}::connected_to_dies",),
    ),
    Row(
        "RabbitMQ",
        "its node freezes",
        "| a node freezes |",
        (f"{_RABBIT_CLUSTER}::connected_to_freezes",),
    ),
    Row("RabbitMQ", "intake without a majority, full, refusing", SILENCE, ("integration/test_intake_takes.py",)),
    Row("RabbitMQ", "a foreign binding takes messages away", SILENCE, ("integration/test_foreign_bindings.py",)),
    Row(
        "RabbitMQ",
        "policies on postdate's queues",
        "A RabbitMQ policy can",
        ("integration/test_policies_named.py", "integration/test_policies.py"),
    ),
    Row("RabbitMQ", "certificate expires under load", PARKED, ("chaos/test_tls.py",)),
    Row(
        "Kafka",
        "killed",
        "| RabbitMQ or Kafka | postdate waits",
        (f"{_KAFKA}::test_a_killed_kafka", f"{_KAFKA}::test_a_kafka_that_is_killed"),
    ),
    Row(
        "Kafka",
        "stands still",
        "| a broker freezes |",
        (f"{_KAFKA}::test_a_kafka_that_stands_still", f"{_KAFKA}::test_a_node_that_stands"),
    ),
    Row("Kafka", "a node goes", "| a broker dies |", (f"{_KAFKA}::test_a_node_that_goes",)),
    Row("Kafka", "a majority of nodes is gone", PARKED, (f"{_KAFKA}::test_a_majority",)),
    Row("Kafka", "too few replicas in sync", "| `min.insync.replicas` is not met |", (f"{_KAFKA}::test_too_few",)),
    Row("Kafka", "full disk", PARKED, (f"{_KAFKA_STORAGE}::test_a_full_disk",)),
    Row(
        "Kafka",
        "retention removes records",
        "Kafka deletes records of an intake topic",
        (f"{_KAFKA_STORAGE}::test_each_record",),
    ),
    Row("Kafka", "exactly once through kills and freezes", ONCE, ("chaos/test_kafka_exactly_once.py",)),
    Row(
        "Redis",
        "killed, append-only file",
        "| Redis, process killed |",
        (f"{_REDIS}::test_a_killed_redis", f"{_KAFKA_STORE}::test_a_redis_killed"),
    ),
    Row(
        "Redis",
        "away",
        PARKED,
        (f"{_REDIS}::test_a_redis_that_is_gone", f"{_KAFKA_STORE}::test_a_redis_away"),
    ),
    Row(
        "Redis",
        "stands still again and again",
        ORDER,
        (f"{_REDIS}::test_a_redis_that_stands_still", f"{_KAFKA_STORE}::test_a_redis_that_stands"),
    ),
    Row("Redis", "replies lost", SAME_ID, (f"{_REDIS}::test_a_park_whose_reply",)),
    Row("Redis", "full", SILENCE, (f"{_REDIS}::test_a_full_redis", f"{_KAFKA_STORE}::test_a_full_redis")),
    Row(
        "Redis",
        "emptied",
        "**An emptied or replaced store.**",
        (f"{_REDIS}::test_a_redis_that_somebody", "integration/test_store_emptied.py"),
    ),
    Row("Redis", "operators' commands over and over", PARKED, (f"{_REDIS}::test_orders_that",)),
    Row("Redis", "failover by Sentinel", "| Redis, failover by Sentinel", (f"{_CLUSTER}::test_a_failover",)),
    Row(
        "Redis",
        "failovers one after the other, every replica holds what was parked",
        "| `replicas` | what the promoted replica",
        (f"{_CLUSTER}::test_one_failover", f"{_FREEZES}::test_masters"),
    ),
    Row(
        "Redis",
        "frozen master",
        "| `everysec`, `always` | what the replica",
        (f"{_CLUSTER}::test_a_master_that_freezes", f"{_FREEZES}::test_a_master"),
    ),
    Row(
        "Redis",
        "frozen node of a Cluster",
        "A dead or frozen master stops its own shards",
        (f"{_CLUSTER}::test_a_frozen", f"{_FREEZES}::test_a_node_of"),
    ),
    Row("Redis", "clock steps", "| Redis's clock jumps |", (f"{_CLOCK}::test_after_a_step",)),
    Row(
        "Redis",
        "clock steps back with messages parked",
        "| the clock steps",
        (f"{_CLOCK}::test_what_was_parked",),
    ),
    Row(
        "Redis",
        "failover to a replica with another clock",
        "| an instance dies, before or after a step |",
        (f"{_CLOCK}::test_a_failover",),
    ),
    Row(
        "messages",
        "bytes, properties, headers",
        BYTES,
        ("integration/test_fidelity.py", "integration/kafka/test_like_targets.py"),
    ),
    Row("messages", "many tiny headers", DEAD, ("integration/test_many_headers.py",)),
    Row(
        "messages",
        "an expiration of the producer",
        "`expiration` counts twice",
        ("integration/test_levels.py::expiration", "integration/test_retry_routes.py::test_what_expires"),
    ),
    Row("messages", "order of a key, two instances", ORDER, ("integration/test_delivery_order.py",)),
    Row("messages", "refused and unroutable", CONFIRMED, ("integration/test_delivery_refused.py",)),
    Row("operators", "pause, drain, limits through every fault", PARKED, ("chaos/test_orders_and_limits.py",)),
    Row("operators", "mode of a route changed under load", PARKED, ("chaos/test_mode_changes.py",)),
    Row("operators", "plugin migrated under traffic", PARKED, ("chaos/test_migrate_plugin.py",)),
    Row(
        "retries",
        "kills of postdate, broker and Redis",
        PARKED,
        ("chaos/test_retries.py", "chaos/test_kafka_retries.py"),
    ),
    Row(
        "levels", "kills of broker and postdate", EARLY, ("chaos/test_levels_survive.py", "chaos/test_kafka_levels.py")
    ),
)
