"""The settings that say what producers may ask for: what they inherit, and that a wrong one is reported in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.rabbitmq.topology.route_topology import plan
from bridge.core.errors import SettingsError
from bridge.delay.trust import Trust
from bridge.pipeline.derive import level_rules, route_rules
from bridge.settings import Settings, load, open_routes

ROUTE = '[routes.orders]\nintercept = "orders.delay"\n'
TO_QUEUES = ROUTE + 'deliver_to = ""\n'
TO_EXCHANGE = ROUTE + 'deliver_to = "orders"\n'


pytestmark = pytest.mark.usefixtures("empty_directory")


def from_toml(text: str) -> Settings:
    file = Path("some.toml")
    file.write_text(text, encoding="utf-8")
    return load(file, {})


def test_by_default_a_route_trusts_its_producers() -> None:
    for text in (TO_EXCHANGE, TO_QUEUES, TO_EXCHANGE + 'broker = "kafka"\n'):
        assert route_rules(from_toml(text), "orders").trust is None


def test_a_route_without_a_store_has_the_same_rules() -> None:
    settings = from_toml(TO_QUEUES + 'mode = "levels"\ncancel = false\nallow_to = ["a", "b"]\n')
    assert level_rules(settings, "orders").trust == Trust(False, frozenset({b"a", b"b"}))


def test_a_list_of_topics_is_no_list_of_keys() -> None:
    settings = from_toml(TO_EXCHANGE + 'broker = "kafka"\nallow_to = ["bills"]\n')
    assert route_rules(settings, "orders").trust is None


def test_a_route_sets_or_inherits_on_same_key() -> None:
    headers = '[headers]\non_same_key = "keep"\n'
    assert route_rules(from_toml(headers + TO_EXCHANGE), "orders").on_same_key == "keep"
    own = from_toml(headers + TO_EXCHANGE + 'on_same_key = "reject"\n')
    assert route_rules(own, "orders").on_same_key == "reject"


def test_a_route_with_a_list_takes_every_message_because_rabbitmq_would_deliver_a_level_to_any_queue() -> None:
    def bound(more: str) -> tuple[object, int]:
        (route,) = plan(from_toml(TO_QUEUES + 'mode = "levels"\n' + more))
        return route.binding.arguments.get("x-match"), len(route.unbound)

    assert bound("") == ("any-with-x", 1)
    assert bound('allow_to = ["a"]\n') == ("all", 0)


def test_an_open_route_is_named_with_what_to_do() -> None:
    assert list(open_routes(from_toml(TO_QUEUES + 'allow_to = ["a"]\n'))) == []
    assert list(open_routes(from_toml(TO_EXCHANGE))) == []
    assert list(open_routes(from_toml('[routes.r]\nkind = "retry"\nqueue = "q"\nschedule = ["1s"]\n'))) == []
    ((name, text),) = open_routes(from_toml(TO_QUEUES))
    assert name == "orders"
    assert "can write to any queue" in text
    assert text.endswith("routes.orders.allow_to")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TO_EXCHANGE + 'broker = "kafka"\ntombstones = "cancel"\ncancel = false\n',
            "routes.orders.tombstones must be deliver if cancel is false",
        ),
        (
            TO_EXCHANGE + 'mode = "levels"\non_same_key = "reject"\n',
            "routes.orders.on_same_key is only for mode redis, not for levels",
        ),
        (
            TO_EXCHANGE + 'allow_to = ["a"]\n',
            'routes.orders.allow_to is only for deliver_to = "": the bindings of exchange "orders" choose the queues',
        ),
        (
            TO_QUEUES + "allow_to = []\n",
            "routes.orders.allow_to must name at least one queue. Remove it to",
        ),
        (TO_QUEUES + 'allow_to = ["a", ""]\n', "routes.orders.allow_to (item 2) must be the name of a queue"),
        (
            TO_QUEUES + 'allow_to = ["postdate.orders"]\n',
            'routes.orders.allow_to (item 1) is "postdate.orders", an internal queue of postdate',
        ),
        (
            "[headers]\nkeep_cc = true\n" + TO_QUEUES + 'allow_to = ["a"]\n',
            "routes.orders.allow_to requires headers.keep_cc = false: CC can name more queues",
        ),
        (TO_QUEUES + 'on_same_key = "drop"\n', "routes.orders.on_same_key must be one of replace, keep, reject"),
        (TO_QUEUES + 'cancel = "no"\n', "routes.orders.cancel must be true or false"),
    ],
)
def test_conflicting_settings_are_reported_in_one_line(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_toml(text)
    assert str(caught.value).startswith(f"some.toml: {said}")
    assert len(str(caught.value).splitlines()) == 1
