"""What a topic of ours takes over from the topic where it leads, and in what an existing one falls short of it. Pure.

A record is as safe, and as large, in an intake topic as at its destination. So an intake is made with the same number
of replicas, ``min.insync.replicas`` and ``max.message.bytes``. What fits the intake fits the target: postdate takes the
delay headers out, and leaves its own out where they would not fit (``lane.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from adapters.kafka.topology.topics import Config, Topic

INSYNC = "min.insync.replicas"
SIZE = "max.message.bytes"
_POLICY = "cleanup.policy"
_RETENTION = "retention.ms"
#: Everything that is asked of a topic here.
ASKED = (INSYNC, SIZE, _POLICY, _RETENTION)


def intake_config(target: Config, retention_ms: int) -> dict[str, str]:
    """What an intake topic is made with."""
    copied = {name: target.own[name] for name in (INSYNC, SIZE) if name in target.own}
    return {_POLICY: "delete", _RETENTION: str(retention_ms), **copied}


def insync_of(targets: Iterable[Config], replicas: int) -> dict[str, str]:
    """What a topic of ``replicas`` copies takes over that is on the way to these targets: the strictest of theirs."""
    wanted = [int(target.own[INSYNC]) for target in targets if INSYNC in target.own]
    return {INSYNC: str(max(1, min(max(wanted), replicas)))} if wanted else {}


def intake_falls_short(intake: Topic, has: Config, target: Topic, its: Config, retention_ms: int) -> str:
    """A sentence, without its stop, on an intake that is there; "" where it is as it would be made. A setting that may
    not be asked for is not judged."""
    less = [*_less_safe(intake, has, target, its)]
    size, wanted = _number(has, SIZE), _number(its, SIZE)
    if size is not None and wanted is not None and size != wanted:
        what = "producers cannot send larger records" if size < wanted else "larger records become dead letters"
        less.append(f"{SIZE} is {size} and there {wanted}, so {what}")
    if "compact" in has.values.get(_POLICY, ""):
        less.append(f"{_POLICY} is compact, so Kafka may remove a record before postdate reads it: set it to delete")
    kept_ms = _number(has, _RETENTION)
    if kept_ms is not None and 0 <= kept_ms < retention_ms:
        less.append(f"{_RETENTION} is {kept_ms}, shorter than kafka.intake_retention ({retention_ms})")
    return _sentence(intake, target, less)


def level_falls_short(level: Topic, has: Config, target: Topic, its: Config) -> str:
    """The same on a topic in which records wait."""
    return _sentence(level, target, [*_less_safe(level, has, target, its)])


def _less_safe(topic: Topic, has: Config, target: Topic, its: Config) -> Iterator[str]:
    if topic.replicas < target.replicas:
        yield f"it has replicas: {topic.replicas}, there: {target.replicas}"
    insync, wanted = _number(has, INSYNC), _number(its, INSYNC)
    if insync is not None and wanted is not None and insync < min(wanted, topic.replicas):
        yield f"{INSYNC} is {insync} and there {wanted}"


def _number(config: Config, name: str) -> int | None:
    return int(config.values[name]) if name in config.values else None


def _sentence(topic: Topic, target: Topic, less: list[str]) -> str:
    if not less:
        return ""
    return (
        f"topic '{topic.name}' of route {topic.route} is not like '{target.name}', where it leads: {'; '.join(less)}. "
        "Change it: `kafka-configs.sh --alter` (replicas: `kafka-reassign-partitions.sh`)"
    )
