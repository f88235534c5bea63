"""The sentence on the page, in `stats`, `doctor` and /readyz: a table of facts and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.delay.duration import write_moment
from bridge.desk.clock_step import ClockStep
from bridge.desk.numbers import RouteStats, ServerMemory, Stats, together
from bridge.desk.severity import Severity
from bridge.operate.verdict import STALE_S, STARTING, STOPPING, InstanceState, Known, LocalReport, judge, shown_overdue
from bridge.telemetry.health import RESTORE, RESTORES_ITSELF, WELL, lacks_messages, waits_after_refusal

RUNNING = {"able": True, "health": WELL, "shards": [0, 1], "routes": ["orders"]}
CALM = Stats(10_000, 5, 0, 0, 0, 70_000, {}, {"a-1": RUNNING}, ())
AWAY = "Redis does not answer at 127.0.0.1:6379 (Connection refused). Start it, or correct redis.url"
HERE = LocalReport("a-1", "rabbitmq", 0.4)
WAITS = {**RUNNING, "unconfirmed": 172, "unconfirmed_s": 2.5}
LATE = {"able": True, "health": "was due 13s ago.", "troubles": {"overdue": "was due 13s ago"}}
LOST_SEEN = {**RUNNING, "health": "Lost.", "routes": ["orders"], "troubles": {"store contents": "Redis was emptied"}}
REFUSED = {
    **RUNNING,
    "health": "Ill.",
    "troubles": {
        "store full": "nothing is parked: Redis is full",
        "route orders": "messages of route orders are refused",
    },
}
ILL = {"able": True, "health": "the store cannot be reached: it timed out."}


STEP = ClockStep(9_000, 3_600_000)
PAUSED, DRAINED = (RouteOrder(state, 1, Actor("admin"), "") for state in (RouteState.PAUSED, RouteState.DRAINING))


def late(ms: int) -> Stats:
    """Two overdue messages, the oldest by so much."""
    return replace(CALM, overdue=2, by_route={"orders": RouteStats(5, overdue=2, oldest_overdue_ms=ms)})


TABLE = {
    "calm": (Known(CALM), "OK", "All well: 5 parked, next in 1m, nothing overdue."),
    "nothing parked": (Known(replace(CALM, parked=0, next_due_ms=None)), "OK", "All well: 0 parked, none due,"),
    "most of it is held": (
        Known(replace(CALM, held=4, claimed=2, by_route={"slow": RouteStats(7, held=4)})),
        "OK",
        "All well: 7 parked, next in 1m, nothing overdue. Held: slow (4).",
    ),
    "two of three routes are paused, and the next message of the third is a minute later": (
        Known(
            replace(
                CALM,
                held=1_200,
                next_due_ms=12_000,
                orders={"orders": PAUSED, "bills": PAUSED, "last": DRAINED},
                by_route={
                    "bills": RouteStats(1_300, held=1_200, next_due_ms=12_000),
                    "orders": RouteStats(3, next_due_ms=13_000),
                    "third": RouteStats(1, next_due_ms=73_000),
                },
            )
        ),
        "WARN",
        "Paused: bills (held: 1,200), orders. Draining: last. 5 parked, next in 1m 3s, nothing overdue.",
    ),
    "a pause holds due messages, and a rate others": (
        Known(
            replace(
                CALM,
                orders={"bills": PAUSED},
                by_route={"bills": RouteStats(360, held=360), "slow": RouteStats(7, held=4, next_due_ms=73_000)},
            )
        ),
        "WARN",
        "Paused: bills (held: 360). Held: slow (4). 5 parked, next in 1m 3s, nothing overdue.",
    ),
    "a rate has held a message for long": (
        Known(
            replace(CALM, held=1_168, by_route={"orders": RouteStats(1_200, held=1_168, oldest_held_ms=54_300)}),
            rates={"orders": 10.0},
        ),
        "WARN",
        "Warning: route orders: more is due than its max_rate of 10/s lets out. Held: 1,168, the oldest for 54s.",
    ),
    "a step of the clock that the stores of both brokers noted": (
        Known(together([replace(CALM, step=STEP), replace(CALM, step=STEP._replace(at_ms=9_500), instances={})])),
        "FAIL",
        f"Trouble: {STEP}.",
    ),
    "a step of the clock, and a loss": (
        Known(replace(CALM, step=STEP, loss="Redis was emptied", lost_ms=9_000)),
        "FAIL",
        "Trouble: Redis was emptied. Troubles: 2.",
    ),
    "a step of the clock, and an intake queue that was deleted": (
        Known(replace(CALM, step=STEP), local=[replace(HERE, troubles={"rabbitmq deleted orders": "it is gone"})]),
        "FAIL",
        "Trouble: it is gone. Troubles: 2.",
    ),
    "a step of the clock some minutes ago": (
        Known(replace(CALM, now_ms=200_000, step=STEP)),
        "WARN",
        f"Warning: {STEP}.",
    ),
    "a step of the clock some minutes ago, and messages of a recreated queue that are lost": (
        Known(
            replace(CALM, now_ms=200_000, step=STEP, warnings=("dead letters",)),
            local=[replace(HERE, troubles={"rabbitmq recreated orders": "they are lost"})],
        ),
        "WARN",
        "Warning: dead letters. Warnings: 3.",
    ),
    "no running instance has the route of held messages": (
        Known(
            replace(
                CALM,
                overdue=4,
                refused=4,
                held=4,
                by_route={
                    "invoices": RouteStats(4, 4, overdue=4, oldest_overdue_ms=9_000, refused=4, oldest_held_ms=9_000),
                    "new": RouteStats(1, 1, overdue=1, oldest_overdue_ms=900),
                },
            )
        ),
        "WARN",
        "Overdue: 4, the oldest by 9s. Warning: route invoices: no running instance has it. Due messages that wait: 4. "
        "Restore [routes.invoices], or list them: `postdate list --route invoices`. Held: new (1).",
    ),
    "a rate spreads what was due together": (
        Known(
            replace(CALM, held=2, by_route={"orders": RouteStats(5, held=2, oldest_held_ms=29_000)}),
            rates={"orders": 10.0},
        ),
        "OK",
        "All well: 5 parked, next in 1m, nothing overdue. Held by max_rate: orders (2).",
    ),
    "a store that is full, and a limit that was raised since its instance looked": (
        Known(CALM, local=[replace(HERE, troubles={"store memory": "Redis uses 455% of its maxmemory"})]),
        "OK",
        "All well: 5 parked",
    ),
    "every route is paused": (
        Known(replace(CALM, orders={"orders": PAUSED}, by_route={"orders": RouteStats(5, next_due_ms=70_000)})),
        "OK",
        "All well: 5 parked, none due, nothing overdue. Paused: orders.",
    ),
    "the next message of a route that is not paused is not known": (
        Known(
            replace(CALM, orders={f"r{n}": PAUSED for n in range(7)}, by_route={"deep": RouteStats(5)}, next_due_ms=1)
        ),
        "OK",
        "All well: 5 parked, nothing overdue. Paused: r0, r1, r2, r3, r4 and 2 more.",
    ),
    "the store was asked and may still answer": (
        Known(asked=True, local=[HERE]),
        "WARN",
        "Not known: the store has not answered yet.",
    ),
    "numbers of a look before the one that has no answer yet": (
        Known(CALM, local=[HERE], age_s=3.2),
        "FAIL",
        "5 parked, next in 1m, nothing overdue. These numbers are 3s old: the store has not answered since.",
    ),
    "two instances died with one command": (
        Known(replace(CALM, instances={"c-3": RUNNING}, silent={"a-1": 21_500, "b-2": 20_900})),
        "FAIL",
        "Trouble: silent instances: a-1 for 21s, b-2 for 20s. Each is frozen, or it died. Look at its process.",
    ),
    "two instances died, and others took over": (
        Known(replace(CALM, now_ms=99_000, lost={"a-1 (rabbitmq)": 0, "b-2 (kafka)": 1_000}, warnings=("and more",))),
        "WARN",
        "Warning: lost instances: a-1 (rabbitmq) at 1970-01-01T00:00:00.000Z, b-2 (kafka) at",
    ),
    "two instances were lost": (
        Known(replace(CALM, now_ms=99_000, lost={"a-1 (rabbitmq)": 0, "b-2 (kafka)": 1_000})),
        "WARN",
        "Warning: lost instances: a-1 (rabbitmq) at 1970-01-01T00:00:00.000Z, "
        "b-2 (kafka) at 1970-01-01T00:00:01.000Z. Each stopped",
    ),
    "an instance was lost that may hold its intakes": (
        Known(replace(CALM, lost={"a-1 (rabbitmq)": 0})),
        "FAIL",
        "Trouble: lost instances: a-1 (rabbitmq) at 1970-01-01T00:00:00.000Z. Each stopped",
    ),
    "the next due message is a canary's": (
        Known(
            replace(
                CALM,
                next_due_ms=10_400,
                by_route={"orders": RouteStats(5, next_due_ms=70_000), "postdate_canary_kafka": RouteStats(1)},
            )
        ),
        "OK",
        "All well: 4 parked, next in 1m, nothing overdue.",
    ),
    "the next is due now": (Known(replace(CALM, next_due_ms=9_990)), "OK", "All well: 5 parked, next now, nothing"),
    "the store counts less than a moment ago": (
        Known(replace(CALM, shrunk=True, instances={})),
        "FAIL",
        "Trouble: Redis counts less than a moment ago: it was emptied, or replaced by an older copy of its data. How",
    ),
    "a loss that one of two instances has reported yet": (
        Known(
            replace(CALM, lost_ms=9_000, loss="Redis was emptied", instances={"a-1": LOST_SEEN, "b-2": RUNNING}),
        ),
        "FAIL",
        "Trouble: Redis was emptied.",
    ),
    "a loss took the reports of the instances": (
        Known(replace(CALM, lost_ms=9_000, loss="Redis was emptied", instances={})),
        "FAIL",
        "Trouble: Redis was emptied.",
    ),
    "a store without a trace of postdate": (
        Known(replace(CALM, instances={}, blank=True)),
        "FAIL",
        "Trouble: no instance is running, or Redis was emptied a moment ago. Start one with `postdate run`.",
    ),
    "overdue by less than a second": (Known(late(900)), "OK", "All well: 5 parked"),
    "overdue": (Known(late(5_300)), "WARN", "Overdue: 2, the oldest by 5s. No instance reports a cause."),
    "all instances are stopped orderly": (
        Known(CALM, unready=[("parent", STOPPING), ("a-1", STOPPING), ("b-2", STOPPING)]),
        "FAIL",
        "Trouble: instances stopping on this machine: a-1, b-2.",
    ),
    "an instance starts": (
        Known(CALM, unready=[("c-3", STARTING)]),
        "FAIL",
        "Trouble: instances starting on this machine: c-3.",
    ),
    "one of two instances has met a missing destination, and a full store": (
        Known(
            replace(CALM, by_route={"orders": RouteStats(5, refused=2)}, instances={"a-1": REFUSED, "b-2": RUNNING}),
        ),
        "FAIL",
        "Trouble: nothing is parked: Redis is full. Troubles: 2.",
    ),
    "sent and not confirmed": (
        Known(replace(CALM, claimed=200, instances={"a-1": WAITS})),
        "WARN",
        "Overdue: 172, the oldest by 2s. Of these, the broker has not confirmed: 172.",
    ),
    "claimed from a store that has lost them": (
        Known(replace(CALM, loss="Redis was emptied", lost_ms=9_000, instances={"a-1": WAITS})),
        "FAIL",
        "Trouble: Redis was emptied. Overdue: 172, the oldest by 2s.",
    ),
    "given back since the report": (Known(replace(CALM, instances={"a-1": WAITS})), "OK", "All well: 5 parked"),
    "delivered since the report": (
        Known(replace(CALM, instances={"a-1": LATE}), local=[replace(HERE, name="b-2", troubles={"overdue": "13s"})]),
        "OK",
        "All well: 5 parked",
    ),
    "overdue by an instance, and something is being sent": (
        Known(replace(CALM, claimed=1, instances={"a-1": LATE})),
        "FAIL",
        "Trouble: was due 13s ago.",
    ),
    "long overdue": (Known(late(65_000)), "FAIL", "Overdue: 2, the oldest by 1m 5s."),
    "a warning of the store": (Known(replace(CALM, warnings=("keys were lost",))), "WARN", "Warning: keys were lost."),
    "the clock of a machine is wrong": (
        Known(replace(CALM, instances={"pd3": {**RUNNING, "clock_offset_s": -119.99}, "a-1": RUNNING})),
        "WARN",
        "Warning: the clock of pd3 differs from Redis's by 120 s. Deliveries go by Redis's",
    ),
    "two clocks are wrong": (
        Known(replace(CALM, instances={n: {**RUNNING, "clock_offset_s": off} for n, off in (("a", 5), ("b", -9.1))})),
        "WARN",
        "Warning: the clock of a differs from Redis's by 5 s, of b by 9 s. Deliveries",
    ),
    "a clock that is off by less than its alert has": (
        Known(replace(CALM, instances={"a-1": {**RUNNING, "clock_offset_s": 0.9}})),
        "OK",
        "All well: 5 parked",
    ),
    "the store is away": (Known(away=AWAY, local=[HERE]), "FAIL", f"Trouble: {AWAY}."),
    "no route has a store": (Known(stored=False, local=[HERE]), "OK", "No route has a store."),
    "no instance runs": (
        Known(replace(CALM, instances={})),
        "FAIL",
        "Trouble: no instance is running. Start one with `postdate run`.",
    ),
    "no instance runs yet, and one is starting here": (
        Known(replace(CALM, instances={}), unready=[("processes", "not all processes have started")]),
        "FAIL",
        "Trouble: not all processes have started.",
    ),
    "an instance that starts here waits for its journal": (
        Known(
            replace(CALM, instances={}),
            local=[replace(HERE, troubles={"journal": "waiting for the journal: no answer"})],
        ),
        "FAIL",
        "Trouble: waiting for the journal: no answer.",
    ),
    "the only instance is frozen": (
        Known(replace(CALM, instances={}, silent={"a-1": 21_500})),
        "FAIL",
        "Trouble: instance a-1 has been silent for 21s: it is frozen, or it died. Look at its process.",
    ),
    "an instance on this machine is frozen and still counts as running": (
        Known(CALM, local=[replace(HERE, silent_s=7.2)]),
        "FAIL",
        "Trouble: instance a-1 has been silent for 7s: it is frozen, or it died. Look at its process.",
    ),
    "the parent of workers is frozen": (
        Known(CALM, local=[HERE, LocalReport("parent", "", 9.0)]),
        "FAIL",
        "Trouble: instance parent has been silent for 9s",
    ),
    "an instance lives and does not reach the store": (
        Known(replace(CALM, instances={}, silent={"a-1": 3_000}), local=[HERE]),
        "FAIL",
        "Trouble: instance a-1 does not report to the store.",
    ),
    "an instance reports a trouble to the store only": (
        Known(replace(CALM, instances={"a-1": ILL})),
        "FAIL",
        "Trouble: the store cannot be reached: it timed out.",
    ),
    "after an outage the report in the store is a beat behind": (
        Known(replace(CALM, instances={"a-1": ILL}), local=[HERE]),
        "OK",
        "All well: 5 parked, next in 1m, nothing overdue.",
    ),
    "an instance that cannot deliver": (
        Known(replace(CALM, instances={"a-1": {"able": False, "health": WELL}})),
        "FAIL",
        "Trouble: instance a-1 is starting, or it cannot deliver now.",
    ),
    "two troubles and overdue messages": (
        Known(late(12_000), local=[replace(HERE, troubles={"a": "x.", "b": "y."})]),
        "FAIL",
        "Trouble: x. Troubles: 2. Overdue: 2, the oldest by 12s.",
    ),
    "the store is away, and its instances say so too": (
        Known(away=AWAY, local=[replace(HERE, troubles={"store": "the store cannot be reached: x"})]),
        "FAIL",
        f"Trouble: {AWAY}.",
    ),
    "not ready without another trouble": (
        Known(CALM, local=[HERE], unready=[("canary", "no canary of RabbitMQ came back")]),
        "FAIL",
        "Trouble: no canary of RabbitMQ came back.",
    ),
}


@pytest.mark.parametrize(("known", "level", "sentence"), TABLE.values(), ids=TABLE)
def test_the_verdict_says_what_is_known_and_no_more(known: Known, level: str, sentence: str) -> None:
    overall = judge(known)
    assert overall.sentence.startswith(sentence)
    assert overall.sentence.endswith(".")
    assert overall.level is Severity(level)
    assert overall.well == (level == "OK")


def test_a_figure_of_overdue_messages_appears_with_its_sentence() -> None:
    for ms, shown in ((900, (0, 0)), (1_000, (2, 1_000))):
        assert shown_overdue(late(ms)) == shown
        assert ("Overdue" in judge(Known(late(ms))).sentence) == bool(shown[0])


def test_a_route_that_no_instance_has_is_the_cause_as_soon_as_its_messages_are_overdue_and_counts_them_once() -> None:
    counts = RouteStats(4, 4, overdue=4, oldest_overdue_ms=1_000, refused=4, oldest_held_ms=1_000)
    refused = "messages of route bills are refused, the last one as no_route: the settings have no route 'bills'"
    troubles = {"route bills": refused}
    report = {"health": f"{refused}.", "troubles": troubles, "able": True, "routes": ["orders"]}
    found = replace(CALM, overdue=4, refused=4, held=4, by_route={"bills": counts}, instances={"a-1": report})
    overall = judge(Known(found))
    assert overall.sentence == (
        "Overdue: 4, the oldest by 1s. Warning: route bills: no running instance has it. Due messages that wait: 4. "
        "Restore [routes.bills], or list them: `postdate list --route bills`."
    )
    away = {**troubles, "rabbitmq publish": "nothing can be published"}
    overall = judge(Known(replace(found, instances={"a-1": {**report, "troubles": away}})))
    assert overall.sentence == "Trouble: nothing can be published. Warnings: 1. Overdue: 4, the oldest by 1s."
    other = {**report, "health": "All well.", "troubles": {}, "routes": ["bills"]}
    overall = judge(Known(replace(found, instances={"a-1": report, "b-1": other})))
    assert overall.sentence.startswith(f"Trouble: {refused}."), "another instance has it"


def test_what_a_rate_holds_is_said_once_and_a_question_keeps_its_mark() -> None:
    held = {"bills": RouteStats(3, held=3), "slow": RouteStats(9, held=9, oldest_held_ms=54_300)}
    serving = {**RUNNING, "routes": ["bills", "orders", "slow"]}
    found = replace(CALM, orders={"bills": PAUSED}, by_route=held, instances={"a-1": serving})
    assert judge(Known(found, rates={"slow": 10.0})).sentence == (
        "Warning: route slow: more is due than its max_rate of 10/s lets out. Held: 9, the oldest for 54s. "
        "Paused: bills (held: 3)."
    )
    asks = "the last reload failed, and nothing was changed: unknown setting. Did you mean `setup`?"
    assert judge(Known(CALM, reload=asks)).sentence == f"Warning: {asks}"


@pytest.mark.parametrize("known", [row[0] for row in TABLE.values()], ids=TABLE)
def test_all_well_never_stands_beside_an_instance_that_is_not(known: Known) -> None:
    overall = judge(known)
    others = [instance for instance in overall.instances if instance.state is not InstanceState.WELL]
    assert not (overall.well and others)
    assert all(instance.faults for instance in others)


def test_while_the_store_is_away_no_instance_that_needs_it_is_well() -> None:
    overall = judge(Known(away=AWAY, local=[HERE, LocalReport("levels-1", "rabbitmq", 0.1, stored=False)]))
    assert {instance.name: instance.state for instance in overall.instances} == {
        "a-1": InstanceState.TROUBLE,
        "levels-1": InstanceState.WELL,
    }
    assert overall.sentence == f"Trouble: {AWAY}."


def test_while_the_store_is_away_no_refusal_is_shown_that_only_the_store_could_know_to_be_over() -> None:
    refused = replace(HERE, troubles={"route orders": "it was refused", "confirms": "it waits"})
    levels = replace(HERE, name="levels-1", stored=False, troubles={"route bills": "it is refused"})
    overall = judge(Known(away=AWAY, local=[refused, levels]))
    assert [fault.subject for fault in overall.faults] == ["store", "route bills", "confirms"]
    (alone,) = judge(Known(away=AWAY, local=[replace(refused, troubles={"route orders": "refused"})])).instances
    assert [fault.text for fault in alone.faults] == ["it delivers nothing while the store does not answer"]


def test_the_same_trouble_of_several_instances_is_one_and_names_them() -> None:
    text = "nothing is taken from Kafka: no broker of 127.0.0.1:9092 answers."
    here = replace(HERE, troubles={"kafka intake": text})
    there = {
        "able": False,
        "health": f"{text} It cannot see.",
        "troubles": {"kafka intake": text, "kafka publish": "no"},
    }
    overall = judge(Known(replace(CALM, instances={"a-1": RUNNING, "b-2": there}), local=[here]))
    assert [tuple(fault) for fault in overall.faults] == [
        ("a-1, b-2", "kafka intake", text.removesuffix(".")),
        ("b-2", "kafka publish", "no"),
    ]
    assert overall.sentence.endswith(" Troubles: 2.")


def heard(**troubles: dict[str, str]) -> Stats:
    """Instances of one installation by name, each with its troubles."""
    reports = {name: {"able": True, "health": "Ill.", "troubles": found} for name, found in troubles.items()}
    return replace(CALM, claimed=1, instances=reports)


def test_the_same_trouble_with_other_ages_is_one_with_the_largest() -> None:
    waits = "Kafka has not confirmed published messages: {}, the oldest for {}"
    here, there = ({"confirms": waits.format(*words)} for words in ((3, "9s"), (1_200, "1m 10s")))
    (fault,) = judge(Known(heard(a=here, b=there))).faults
    assert fault == ("a, b", "confirms", waits.format("1,203", "1m 10s")), "each instance counts its own messages"
    topic = "nothing is taken from the topic t-{}: it is closed for 3s"
    parted = heard(a={"kafka topic t": topic.format("5s")}, b={"kafka topic t": topic.format("6s")})
    assert len(judge(Known(parted)).faults) == 2, "a number in a name is no age"
    full = "route orders is full: messages: {}"
    (fault,) = judge(
        Known(heard(a={"route orders full": full.format(5)}, b={"route orders full": full.format(6)}))
    ).faults
    assert fault.text == full.format(6), "both count the same messages"


def test_a_database_that_is_away_is_one_trouble_whatever_the_instances_say() -> None:
    lacks = "the journal lacks accepted messages: {}, delivered ones included. Check the database. The journal: {}"
    a = {
        "journal write": lacks.format(645, "database is locked"),
        "journal moves": "the journal is 5s behind the store",
    }
    b = {"journal write": lacks.format(355, "it did not answer within 5 s")}
    c = {"journal cold": "messages that are due in 5m are not loaded from the journal: database is locked"}
    overall = judge(Known(heard(a=a, b=b, c=c)))
    assert overall.faults == [("a, b, c", "journal write", lacks.format("1,000", "database is locked"))]
    assert overall.sentence == f"Trouble: {lacks.format('1,000', 'database is locked')}."
    before = {"store park": "nothing is parked: the journal: database is locked", "journal moves": a["journal moves"]}
    (fault,) = judge(Known(heard(a=before, b={"journal moves": "the journal is 9s behind the store"}))).faults
    assert fault == ("a, b", "journal write", before["store park"]), "the webhook reports it by its server"
    restore = {"journal write": a["journal write"], "journal restore": "Redis lacks messages"}
    assert len(judge(Known(heard(a=restore))).faults) == 2, "a loss is another trouble"


def test_what_is_wrong_now_is_named_before_what_happened_to_the_store() -> None:
    """A loss is shown for an hour, and a newer trouble must not wait behind it."""
    for lost in ("store contents", "rabbitmq deleted postdate.orders"):
        troubles = {lost: "it was lost at 10:00", "journal moves": "it is 40s behind"}
        overall = judge(Known(CALM, local=[replace(HERE, troubles=troubles)]))
        assert overall.sentence == "Trouble: it is 40s behind. Troubles: 2."


def test_a_deleted_queue_that_is_consumed_again_is_a_warning_and_never_above_a_loss_of_the_store() -> None:
    again = {"kafka recreated orders.delay": "the topic was deleted at 10:00. It exists again"}
    overall = judge(Known(CALM, local=[replace(HERE, troubles=again)]))
    assert overall.sentence == f"Warning: {again['kafka recreated orders.delay']}."
    again = {"rabbitmq recreated postdate.orders": "the queue was deleted at 10:00. It is consumed again"}
    overall = judge(Known(CALM, local=[replace(HERE, troubles=again)]))
    assert overall.sentence == f"Warning: {again['rabbitmq recreated postdate.orders']}."
    assert (overall.level, overall.instances[0].state) == (Severity.WARN, InstanceState.WARNING)
    assert judge(Known(stored=False, local=[replace(HERE, troubles=again)])).instances == overall.instances
    old = judge(Known(CALM, local=[replace(HERE, troubles=again)], age_s=3.2))
    assert old.level is Severity.FAIL, "of what is now nothing is known"
    for queue in ("recreated", "deleted"):
        troubles = {f"rabbitmq {queue} postdate.orders": "it was deleted", "store contents": "Messages lost: about 7"}
        overall = judge(Known(CALM, local=[replace(HERE, troubles=troubles)]))
        more = "Warnings: 1." if queue == "recreated" else "Troubles: 2."
        assert overall.sentence == f"Trouble: Messages lost: about 7. {more}"


def test_canaries_are_no_messages_of_anybody() -> None:
    alone = replace(CALM, parked=1, claimed=1, by_route={"postdate_canary_rabbitmq": RouteStats(parked=2)})
    assert judge(Known(alone)).sentence == "All well: 0 parked, none due, nothing overdue."


def test_what_the_journal_misses_is_counted_by_the_stores_each_by_its_broker_and_in_all() -> None:
    kafka, rabbitmq = "Redis was emptied (kafka). Messages lost: about 180", "Redis was emptied (rabbitmq). Lost: 133"
    stores = [replace(CALM, loss=kafka, lost_ms=9_000, still_lost=180, warnings=(kafka,))]
    stores += [replace(CALM, loss=rabbitmq, lost_ms=9_000, still_lost=133, warnings=(rabbitmq,))]
    stores += [replace(CALM, lost_ms=9_000, still_lost=7)]
    troubles = {"journal restore": "Redis lacks messages. Run `postdate restore`", "store contents": "about 180"}
    local = [replace(HERE, troubles=troubles), replace(HERE, name="b-2", broker="kafka", troubles=troubles)]
    assert judge(Known(together(stores), local=local, cure=RESTORE)).sentence == (
        f"Trouble: Messages lost in all: about 313. {kafka}. {rabbitmq}. Run `postdate restore`."
    )
    assert together(stores[:1]).loss == kafka


def test_a_loss_that_two_stores_of_a_server_noticed_has_the_moment_of_the_first() -> None:
    moments = (1_800_000_000_214, 1_800_000_000_000, 1_799_999_900_000)
    texts = [f"Redis was emptied, noticed at {write_moment(at_ms)}. Lost: {at_ms}" for at_ms in moments]
    stores = [
        replace(CALM, lost_ms=at_ms, loss=text, warnings=(text, "other"))
        for at_ms, text in zip(moments, texts, strict=True)
    ]
    both = together(stores[:2])
    assert both.lost_ms == moments[1]
    assert both.loss.count(write_moment(moments[1])) == 2
    assert [warning[:60] for warning in both.warnings] == [texts[1][:60], "other", texts[1][:60]]
    assert judge(Known(both)).sentence.endswith("Warnings: 1."), "the warnings about the loss say the same"
    assert together(stores).lost_ms == moments[1]
    assert texts[2] in together(stores).loss, "an earlier loss has its own moment"


def test_how_full_a_server_is_stands_there_once_in_the_newest_words() -> None:
    words = "Redis uses {}% of its maxmemory. At 100% nothing new is parked"
    stores = [replace(CALM, warnings=(words.format(share), "other")) for share in (99, 100)]
    assert together(stores).warnings == [words.format(100), "other"]


def test_a_lost_instance_is_a_warning_beside_a_loss_of_the_store_and_never_called_the_trouble() -> None:
    lost = {"store contents": "Redis was emptied at 10:00"}
    stats = replace(CALM, now_ms=99_000, lost={"a-1 (rabbitmq)": 0}, warnings=("Redis was emptied at 10:00",))
    overall = judge(Known(stats, local=[replace(HERE, troubles=lost)]))
    assert overall.sentence == "Trouble: Redis was emptied at 10:00. Warnings: 1."
    assert [fault.subject for fault in overall.faults] == ["store contents", "warning"]
    assert overall.faults[1].text.startswith("lost instances: a-1 (rabbitmq) at 1970-01-01T00:00:00.000Z. Each ")


def test_a_refusal_is_over_when_the_store_has_no_refused_and_no_dead_message_of_the_route() -> None:
    local = [replace(HERE, troubles={"route orders": "messages of route orders are refused"})]
    for counts, well in ((RouteStats(5, refused=1), False), (RouteStats(dead=1), False), (RouteStats(5), True)):
        assert judge(Known(replace(CALM, by_route={"orders": counts}), local=local)).well is well
    full = [replace(HERE, troubles={"route orders full": "max_parked is reached"})]
    assert not judge(Known(CALM, local=full)).well, "it is not about refused messages"
    levels = [replace(HERE, name="levels-1", stored=False, troubles={"route orders": "refused"})]
    assert not judge(Known(CALM, local=levels)).well, "the store does not know its messages"


PAST = "route orders delivers again, and messages wait for their next try after a refusal, the last one as unroutable"


def test_messages_that_wait_after_a_refusal_are_a_warning_with_their_number_and_the_cure() -> None:
    told = f"{PAST}. Messages: 82. `postdate deliver --route orders --min-tries 1` sends them now"
    local = [replace(HERE, troubles={"route orders": f"{PAST}."})]
    refused = replace(CALM, by_route={"orders": RouteStats(82, refused=82)})
    overall = judge(Known(refused, local=local))
    assert (overall.level, overall.sentence) == (Severity.WARN, f"Warning: {told}.")
    assert [instance.state for instance in overall.instances] == [InstanceState.WARNING]
    due = replace(CALM, overdue=82, by_route={"orders": replace(RouteStats(82, refused=82), oldest_overdue_ms=33_000)})
    overdue = "Overdue: 82, the oldest by 33s."
    assert judge(Known(due, local=local)).sentence == f"{overdue} Warning: {told}."
    late = [replace(HERE, troubles={"overdue": "was due 33s ago", "route orders": PAST})]
    assert judge(Known(due, local=late)).sentence == f"{overdue} Warning: {told}.", "the refusal says why"
    assert judge(Known(CALM, local=local)).well, "the store has none of them"
    dead = replace(CALM, by_route={"orders": RouteStats(dead=3)})
    assert judge(Known(dead, local=local)).well, "dead letters do not wait"
    assert judge(Known(replace(CALM, instances={}), local=local)).well, "its first report is under way"


def test_a_foreign_binding_is_a_trouble_of_the_broker_and_of_no_instance() -> None:
    two = replace(CALM, instances={name: {**RUNNING, "routes": ["orders"]} for name in ("a-1", "b-2")})
    local = [replace(HERE, troubles={"rabbitmq front orders.delay": "RabbitMQ: bound to the front exchange"})]
    assert judge(Known(two, local=local)).sentence == "Trouble: RabbitMQ: bound to the front exchange."
    local = [replace(HERE, troubles={"rabbitmq publish": "nothing can be published"})]
    assert judge(Known(two, local=local)).sentence == "Trouble: instance a-1: nothing can be published."


@pytest.mark.parametrize(("lost_ms", "held"), [(10_000, True), (-4_000, True), (-6_000, False)])
def test_a_lost_instance_of_rabbitmq_may_hold_the_intake_until_rabbitmq_drops_it(lost_ms: int, held: bool) -> None:
    hold = "On RabbitMQ a frozen instance may hold an intake alone"
    assert (hold in judge(Known(replace(CALM, lost={"a-1 (rabbitmq)": lost_ms}))).sentence) is held
    assert hold not in judge(Known(replace(CALM, lost={"a-1 (kafka)": lost_ms}))).sentence


def test_a_restore_counts_a_loss_down_in_one_sentence_and_ends_it_at_once() -> None:
    said = {"store contents": "Redis was emptied. Messages lost: about 900", "journal restore": "Redis lacks: 100"}
    local = [replace(HERE, troubles=said), replace(HERE, name="a-2", troubles=said)]
    during = replace(CALM, lost_ms=4_000, loss="Redis was emptied. Messages still lost: about 300. Restored: 600")
    overall = judge(Known(during, local=local))
    assert overall.faults[-1].text == during.loss
    assert [fault.subject for fault in overall.faults] == ["store contents"]
    back = replace(CALM, lost_ms=4_000, restored_ms=9_000)
    assert judge(Known(back, local=local)).well
    again = replace(back, lost_ms=9_500, loss="Redis was emptied. Messages lost: about 4")
    assert again.loss in [fault.text for fault in judge(Known(again, local=local)).faults], "of a later loss"
    assert not judge(Known(replace(back, now_ms=30_000), local=local)).well, "it has looked again since then"


def test_a_loss_is_named_first_for_ten_minutes_unless_the_store_is_away() -> None:
    waits = {"confirms": "RabbitMQ has not confirmed published messages: 7", "rabbitmq publish": "it is frozen"}
    loss = replace(CALM, now_ms=1_000_000, lost_ms=999_000, loss="Messages lost: about 9", silent={"b-2": 9_000})
    overall = judge(Known(loss, local=[replace(HERE, troubles=waits)]))
    assert overall.sentence == "Trouble: Messages lost: about 9. Troubles: 4."
    lacks = [replace(HERE, troubles={**waits, "journal restore": "Redis lacks messages"})]
    assert judge(Known(CALM, local=lacks)).sentence == "Trouble: Redis lacks messages. Troubles: 3."
    away = [replace(HERE, troubles={**waits, "store settle": "Redis does not answer"})]
    assert judge(Known(loss, local=away)).sentence == "Trouble: Redis does not answer. Troubles: 5."
    old = judge(Known(replace(loss, now_ms=1_700_000), local=[replace(HERE, troubles=waits)]))
    assert [fault.subject for fault in old.faults] == ["instance", "rabbitmq publish", "confirms", "store contents"]


@pytest.mark.parametrize(
    ("cure", "restoring", "end"),
    [("", False, ""), (RESTORE, False, f" {RESTORE}."), (RESTORES_ITSELF, True, " A restore is under way.")],
)
def test_a_loss_says_at_once_what_ends_it(cure: str, restoring: bool, end: str) -> None:
    lost = "Redis was emptied. Messages lost: about 9"
    facts = replace(CALM, restoring=restoring, warnings=(lost,))
    known = Known(replace(facts, loss=lost, lost_ms=9_000), cure=cure)
    assert judge(known).sentence == f"Trouble: {lost}.{end}", "and no warning repeats it"
    assert judge(Known(replace(facts, warnings=(), shrunk=True), cure=cure)).sentence.endswith(f"known yet.{end}")
    moves = replace(facts, loss=lost, restoring=False)
    assert judge(Known(moves, cure=cure)).sentence == f"Trouble: {lost}.", "no message is lost"
    lacks = [replace(HERE, troubles={"journal restore": lacks_messages(cure)})]
    sentence = judge(Known(replace(facts, warnings=()), local=lacks, cure=cure)).sentence
    assert sentence.rstrip(". ").endswith((end or "journal").strip(" ."))


def test_paused_and_draining_routes_are_named_whatever_else_is_wrong() -> None:
    orders = {"orders": PAUSED, "last": DRAINED}
    troubles, named = [replace(HERE, troubles={"a": "x"})], " Paused: orders. Draining: last."
    assert judge(Known(replace(CALM, orders=orders), local=troubles)).sentence == f"Trouble: x.{named}"
    assert judge(Known(replace(late(5_300), orders=orders))).sentence == (
        f"Overdue: 2, the oldest by 5s. No instance reports a cause.{named}"
    )
    assert judge(Known(replace(CALM, orders=orders, warnings=("w",)))).sentence == f"Warning: w.{named}"


def test_an_instance_that_was_heard_here_and_left_the_store_is_in_trouble_and_not_stale() -> None:
    (verdict,) = judge(Known(replace(CALM, instances={}, silent={"a-1": 60_000}), local=[HERE])).instances
    assert verdict.state is InstanceState.TROUBLE


def test_an_instance_that_cannot_report_because_the_store_refuses_writes_is_not_called_dead() -> None:
    full = replace(CALM, instances={}, silent={"a-1": 60_000}, refuses_writes=True)
    (verdict,) = judge(Known(full)).instances
    assert (verdict.state, [fault.text for fault in verdict.faults]) == (
        InstanceState.TROUBLE,
        ["instance a-1 cannot report while Redis refuses writes"],
    )


def test_nobody_is_called_dead_before_it_could_report_to_a_store_that_is_back() -> None:
    back = replace(CALM, instances={}, silent={"a-1": 17_000})
    soon, later = judge(Known(back, answers_s=1.0)), judge(Known(back, answers_s=STALE_S))
    assert [fault.text for fault in soon.faults] == ["instance a-1 has not reported yet since Redis answers again"]
    assert [found.instances[0].state for found in (soon, later)] == [InstanceState.TROUBLE, InstanceState.STALE]


def test_the_first_trouble_is_what_is_away_and_then_what_follows_from_it() -> None:
    troubles = {
        "store contents": "Redis was emptied at 10:00",
        "overdue": "the oldest overdue message was due 31s ago",
        "kafka commit": "cannot commit offsets to Kafka: no coordinator of the consumer group 'postdate' answers",
        "confirms": "the broker has not confirmed published messages: 606",
        "topology": "what postdate cannot declare",
        "kafka publish": "nothing can be published to Kafka: no broker answers",
        "kafka intake": "nothing is taken from Kafka: no broker answers",
    }
    stats = replace(late(31_000), claimed=606, warnings=("w",), instances={"a-1": RUNNING})
    overall = judge(Known(stats, local=[replace(HERE, troubles=troubles)]))
    assert [fault.subject for fault in overall.faults] == [
        "kafka publish",
        "kafka intake",
        "topology",
        "confirms",
        "kafka commit",
        "store contents",
        "warning",
    ]
    parks = replace(HERE, troubles={"kafka intake": "no broker answers", "store park": "Redis is at its maxmemory"})
    assert judge(Known(CALM, local=[parks])).sentence.startswith("Trouble: Redis is at its maxmemory.")
    frozen = judge(Known(replace(CALM, silent={"b-2": 9_000}), local=[replace(HERE, troubles=troubles)]))
    assert frozen.sentence.startswith("Trouble: instance b-2 has been silent for 9s: ")


OVERDUE = {"overdue": "the oldest overdue message was due 10s ago"}


@pytest.mark.parametrize(
    "subject",
    [
        "store",
        "store claim",
        "rabbitmq publish",
        "kafka intake",
        "kafka leader t",
        "rabbitmq alarm",
        "confirms",
        "claim",
        "route orders",
    ],
)
def test_late_messages_are_no_second_trouble_beside_what_makes_them_late(subject: str) -> None:
    refused = replace(CALM, claimed=3, by_route={"orders": RouteStats(5, refused=1)})
    other = replace(HERE, name="b-2", troubles=OVERDUE)
    overall = judge(Known(refused, local=[replace(HERE, troubles={subject: "it is away", **OVERDUE}), other]))
    assert [fault.subject for fault in overall.faults if fault.text != "it is away"] in ([], ["instance"])
    assert "Troubles:" not in overall.sentence


def test_an_instance_shows_no_late_messages_that_another_sentence_explains() -> None:
    refused = replace(late(18_000), refused=2, by_route={"orders": RouteStats(5, refused=2, oldest_overdue_ms=18_000)})
    waits = {"route orders": f"{waits_after_refusal('orders')}, the last one as no_queue"}
    troubles = {**waits, "overdue": "the oldest overdue message was due 13s ago"}
    for reports in ({"a-1": troubles}, {"a-1": waits, "b-2": {"overdue": troubles["overdue"]}}):
        overall = judge(Known(replace(refused, instances=heard(**reports).instances)))
        assert [fault.subject for each in overall.instances for fault in each.faults] == ["refused"]
        assert {each.state for each in overall.instances} <= {InstanceState.WARNING, InstanceState.WELL}


def test_the_age_of_late_messages_is_that_of_the_oldest_which_the_store_knows() -> None:
    (fault,) = judge(Known(late(18_700), local=[replace(HERE, troubles=OVERDUE)])).faults
    assert fault.text == "the oldest overdue message was due 18s ago"
    (fault,) = judge(Known(replace(late(1_500), claimed=3), local=[replace(HERE, troubles=OVERDUE)])).faults
    assert fault.text == "the oldest overdue message was due 10s ago", "a claimed message is older"


def test_late_messages_are_no_second_trouble_while_redis_or_an_instance_is_away() -> None:
    here = [replace(HERE, troubles=OVERDUE)]
    assert judge(Known(away=AWAY, local=here)).sentence == f"Trouble: {AWAY}."
    silent = replace(CALM, claimed=3, silent={"b-2": 9_000})
    assert [fault.subject for fault in judge(Known(silent, local=here)).faults] == ["instance"]
    unheard = judge(Known(replace(late(12_000), silent={"b-2": 9_000}), local=here, answers_s=1.0))
    assert [fault.subject for fault in unheard.faults] == ["instance"]
    assert (unheard.level, unheard.sentence.endswith(". Overdue: 2, the oldest by 12s.")) == (Severity.FAIL, True)


@pytest.mark.parametrize("subject", ["store full", "store contents", "dead letters", "topology", "route orders full"])
def test_late_messages_are_a_trouble_beside_what_does_not_make_them_late(subject: str) -> None:
    here = [replace(HERE, troubles={subject: "it is so", **OVERDUE})]
    assert "overdue" in [fault.subject for fault in judge(Known(replace(CALM, claimed=3), local=here)).faults]


def test_nothing_is_delivered_is_not_said_beside_a_store_that_answers_and_nothing_overdue() -> None:
    """A process waits for some seconds between two attempts to reach the store."""
    stale = [replace(HERE, troubles={"store claim": "nothing is delivered: Redis does not answer", "store": "no"})]
    (fault,) = judge(Known(CALM, local=stale)).faults
    assert fault.text == "Redis did not answer instance a-1 at its last try"
    (fault,) = judge(Known(replace(CALM, instances={}), local=stale, answers_s=1.0)).faults
    assert fault.text == "Redis did not answer instance a-1 at its last try"
    overdue = [replace(HERE, troubles={"overdue": "the oldest overdue message was due 20s ago"})]
    busy = replace(CALM, claimed=3)
    assert judge(Known(busy, local=overdue, answers_s=1.0)).well, "it was due before the outage"
    assert not judge(Known(busy, local=overdue)).well, "a claimed message may be late"
    for true in (
        Known(late(1_500), local=stale),
        Known(replace(CALM, instances={}, silent={"a-1": 9_000}), local=stale),
    ):
        assert judge(true).sentence.startswith("Trouble: nothing is delivered: Redis does not answer."), "it is true"
    full = [replace(HERE, troubles={"store full": "nothing is parked: Redis is at its maxmemory"})]
    for used, is_full in ((99, True), (101, True), (90, False)):
        found = replace(CALM, memory=[ServerMemory("Redis", used, 100)])
        assert judge(Known(found, local=full)).sentence.startswith("Trouble: nothing is parked:") == is_full
    assert judge(Known(replace(CALM, memory=[ServerMemory("Redis", 99, 0)]), local=full)).well, "it was raised"


def test_the_trouble_of_an_instance_names_it_where_another_one_serves_its_routes_well() -> None:
    troubles = {"rabbitmq intake": "nothing is taken from RabbitMQ: RabbitMQ refuses the user or the password"}
    sick = {"able": False, "health": "no", "troubles": troubles, "routes": ["orders"]}
    for routes, whose in ((["orders"], "instance b-2: "), (["payments"], "")):
        well = {**RUNNING, "routes": routes}
        overall = judge(Known(replace(CALM, instances={"a-1": well, "b-2": sick})))
        assert overall.sentence == f"Trouble: {whose}{troubles['rabbitmq intake']}."


@pytest.mark.parametrize("subject", ["store", "store claim", "store park", "store settle"])
def test_a_store_that_is_back_is_not_called_away_for_what_became_late_meanwhile(subject: str) -> None:
    here = replace(HERE, troubles={subject: f"nothing is delivered: {AWAY}"})
    overall = judge(Known(late(12_000), local=[here], answers_s=2.0))
    assert overall.sentence.startswith("Trouble: Redis did not answer instance a-1 at its last try.")
    assert AWAY in judge(Known(late(12_000), local=[here])).sentence, "it lasts"
