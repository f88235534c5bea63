"""What previous settings left behind, and what `check`, `levels` and `run` say about it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bridge.desk.leftovers import (
    Intake,
    Place,
    Remains,
    Use,
    left_in_store,
    left_over,
    stalled,
    strays,
    unread,
)


def place(
    route: str, messages: int | None, use: Use = Use.OLD, is_dead: bool = False, uncounted: bool = False
) -> Place:
    return Place(route, "queue", f"{route}.{messages}", messages, use, is_dead, uncounted)


class TestStaleLevels:
    def test_each_route_gets_its_number_and_levels_in_use_are_left_out(self) -> None:
        places = [
            place("b", 0),
            place("a", 2),
            place("a", 3),
            place("a", 1, is_dead=True),
            place("a", 7, Use.IN_USE),
            place("c", None, Use.MISSING),
            place("c", 9, Use.IN_USE, is_dead=True),
        ]
        (first, second) = left_over(places)
        assert (first.route, first.messages, first.certain) == ("a", 6, True)
        assert first.text.startswith("stale levels still hold messages: 5 (queue 'a.3': 3, queue 'a.2': 2). postdate")
        assert first.text.endswith("Then `postdate levels remove` deletes the empty ones. Dead letters kept there: 1")
        assert (second.route, second.messages, second.certain) == ("b", 0, True)
        assert second.text == "stale levels are empty. Delete them with `postdate levels remove`"

    def test_a_queue_whose_messages_amqp_does_not_count_is_not_reported_as_empty(self) -> None:
        (empty,) = left_over([place("a", 0), place("a", 0, uncounted=True)])
        assert (empty.route, empty.messages, empty.certain) == ("a", 0, False)
        assert empty.text.startswith("stale levels hold no message that can be counted. These may hold messages that ")
        assert empty.text.endswith("If it shows 0 there, delete them with `postdate levels remove --force`")
        (some,) = left_over([place("a", 1), *(place("a", 0, uncounted=True) for _ in range(6))])
        assert (some.route, some.messages, some.certain) == ("a", 1, False)
        assert "over AMQP: 'a.0', 'a.0', 'a.0', 'a.0' and 2 more. See `rabbitmqctl list_queues" in some.text
        assert some.text.endswith("It shows all")

    def test_levels_of_a_route_that_is_not_configured_are_counted(self) -> None:
        found = left_over([place("gone", 3, Use.NO_ROUTE), place("empty", 0, Use.NO_ROUTE), place("a", 1, Use.IN_USE)])
        (empty, full) = found
        assert (full.route, full.messages) == ("gone", 3)
        assert full.text.startswith("the levels of this route, which is not configured, hold messages: 3. Unless ")
        assert (empty.route, empty.messages) == ("empty", 0)
        assert empty.text.endswith("are empty. Delete their topics")

    def test_of_very_many_queues_the_fullest_are_named_and_the_empty_counted(self) -> None:
        (found,) = left_over([place("a", number) for number in (0, 0, 1, 2, 3, 4, 5, 6)])
        assert found.messages == 21
        named = ", ".join(f"queue 'a.{number}': {number}" for number in (6, 5, 4, 3))
        assert f"hold messages: 21 ({named}, more: 2, empty: 2). " in found.text


class TestParkedMessages:
    def test_only_routes_that_are_not_configured_are_reported(self) -> None:
        parked = {"orders": 7, "bills": 1, "audits": 2}
        (audits, bills) = strays(parked, ["orders"])
        assert (audits.route, audits.messages, bills.route, bills.messages) == ("audits", 2, "bills", 1)
        assert audits.text == (
            'route "audits" is not configured and has parked messages: 2. Unless another instance has the route, they '
            "will not be delivered. Restore [routes.audits], or list them: `postdate list --route audits`"
        )
        assert list(strays(parked, parked)) == []

    def test_a_store_that_no_route_uses_names_the_routes_that_may_own_its_messages(self) -> None:
        assert left_in_store("RabbitMQ", ["a", "b"], Remains(0, 0, {})) == ""
        owners = "RabbitMQ routes that had mode redis before (a, b)"
        parked = left_in_store("RabbitMQ", ["a", "b"], Remains(2, 1, {}))
        assert parked.startswith(f"Redis still holds messages of {owners}: 2 parked, 1 dead. `postdate run` delivers ")
        dead = left_in_store("RabbitMQ", ["a", "b"], Remains(0, 2, {}))
        assert dead.startswith(f"Redis still holds dead letters of {owners}: 2. ")


class TestIntakes:
    def test_an_intake_with_a_consumer_is_not_reported(self) -> None:
        assert list(unread([Intake("a", "queue", "postdate.a", 7, 1)], [])) == []

    def test_an_intake_without_a_consumer_is_reported_with_its_messages(self) -> None:
        (found,) = unread([Intake("a", "topic", "a.delay", 2, 0)], ["a"])
        assert found.text == "topic 'a.delay' has no consumer. Messages there: 2. Start `postdate run` with this route"

    def test_an_empty_intake_may_need_no_postdate_where_the_broker_moves_levels_by_itself(self) -> None:
        intake = Intake("a", "queue", "postdate.a", 0, 0)
        (alone,), (needed,) = unread([intake], ["a"]), unread([intake], [])
        assert alone.text.endswith("Start `postdate run` with this route, unless producers only use x-delay-level")
        assert needed.text.endswith("Start `postdate run` with this route")

    def test_a_frozen_consumer_is_told_from_a_missing_one(self) -> None:
        intakes = [Intake("orders", "queue", "postdate.orders", 7, readers) for readers in (1, 0)]
        frozen, missing = stalled(intakes, ["orders"])
        assert "is frozen or overloaded" in frozen.text
        assert missing.text.endswith("Messages there: 7. Start `postdate run` with this route")


#: Looks for stale levels, as every start does, on brokers that do not answer. Prints which client libraries it loaded.
START = """
import sys
from bridge.app.survey import left_at_start
from bridge.core.errors import BrokerUnavailable
from bridge.settings import load
url = "amqp://127.0.0.1:1" if sys.argv[1] == "rabbitmq" else "127.0.0.1:1"
section = {"rabbitmq": "RABBITMQ__URL", "kafka": "KAFKA__BOOTSTRAP_SERVERS"}[sys.argv[1]]
route = {"BROKER": sys.argv[1], "INTERCEPT": "a.delay", "DELIVER_TO": "a"}
named = {f"POSTDATE_ROUTES__A__{name}": value for name, value in route.items()}
try:
    left_at_start(load(None, {f"POSTDATE_{section}": url, **named}), sys.argv[1])
except BrokerUnavailable:
    print(*sorted({"aiokafka", "pika"} & sys.modules.keys()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("broker", "library"), [("rabbitmq", "pika"), ("kafka", "aiokafka")])
def test_a_start_loads_the_client_library_of_its_own_broker_only(broker: str, library: str) -> None:
    done = subprocess.run([sys.executable, "-c", START, broker], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [library], done.stderr
