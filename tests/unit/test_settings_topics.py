"""The settings of Kafka's topics: mappings and rules, and that a wrong one is reported in one line."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest

from adapters.kafka.levels.level_topics import level_topics
from bridge.core.errors import SettingsError
from bridge.delay.naming import Naming
from bridge.settings import Settings, forgotten_broker, load
from bridge.settings.own_names import takes_level_topic

KAFKA = 'broker = "kafka"\n'


pytestmark = pytest.mark.usefixtures("empty_directory")


def from_toml(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    file = Path("some.toml")
    file.write_text(text, encoding="utf-8")
    return load(file, environ or {})


def refusal(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        from_toml(text)
    return str(caught.value)


def route_toml(more: str, name: str = "orders", intercept: str = "orders.delay", deliver_to: str = "orders") -> str:
    return f'[routes.{name}]\nintercept = "{intercept}"\ndeliver_to = "{deliver_to}"\n{more}\n'


def test_topics_are_mapped_one_by_one_and_by_a_rule() -> None:
    settings = from_toml(
        route_toml(KAFKA + 'also = ["refunds.delay->refunds", "in.* -> out.*"]') + route_toml(KAFKA, "all", "x.*", "*")
    )
    assert settings.routes["orders"].namings() == (
        ("orders.delay", "orders"),
        ("refunds.delay", "refunds"),
        ("in.*", "out.*"),
    )
    assert settings.routes["all"].namings() == (("x.*", "*"),)


def test_a_mapping_can_come_from_the_environment() -> None:
    settings = from_toml(route_toml(KAFKA), {"POSTDATE_ROUTES__ORDERS__ALSO": "a.delay -> a, b.delay -> b"})
    assert settings.routes["orders"].also == ("a.delay -> a", "b.delay -> b")


@pytest.mark.parametrize(
    ("intercept", "deliver_to", "said"),
    [
        ("*.delay", "orders", "deliver_to must have one * where its other half has one"),
        ("orders.delay", "*", "deliver_to must have one *"),
        ("*.*", "*", "intercept must have one *"),
        ("*.delay", "**", "deliver_to must have one *"),
        ("orders delay", "orders", "intercept must be the name of a topic"),
        ("orders.delay", "..", "deliver_to must be the name of a topic"),
        ("__*", "*", 'intercept must not begin with "__" and have a *'),
        ("*.delay", "__*", 'deliver_to must not begin with "__" and have a *'),
        ("*", "*.now", 'deliver_to is "*.now", which this route intercepts: messages would loop forever'),
        ("*.delay", "x.*.delay", 'deliver_to is "x.*.delay", which this route intercepts'),
    ],
)
def test_an_invalid_pattern_is_reported_in_one_line(intercept: str, deliver_to: str, said: str) -> None:
    refused = refusal(route_toml(KAFKA, intercept=intercept, deliver_to=deliver_to))
    assert refused.startswith(f"some.toml: routes.orders.{said}")
    assert len(refused.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('also = ["refunds.delay"]', 'also (item 1) must be two topics with an arrow between: "refunds.delay ->'),
        ('also = ["a -> b", "*.x -> y"]', "also (item 2) must have one * where its other half has one"),
        ('also = ["orders.delay -> b"]', 'also (item 1) is "orders.delay", which this route intercepts already'),
        (
            'also = ["*.delay -> *"]',
            'also (item 1) is "*.delay", which this route intercepts already by "orders.delay"',
        ),
        (
            'also = ["a -> orders.delay"]',
            'also (item 1) is "orders.delay", which this route intercepts: ',
        ),
        ('allow_to = ["a", "*"]', "allow_to (item 2) must be the name of a topic, without *"),
        ('allow_to = ["orders.delay"]', 'allow_to (item 1) is "orders.delay", which this route intercepts'),
        ('tombstones = "drop"', "tombstones must be one of deliver, cancel"),
    ],
)
def test_a_wrong_topic_setting_is_reported_in_one_line(more: str, said: str) -> None:
    refused = refusal(route_toml(KAFKA + more))
    assert refused.startswith(f"some.toml: routes.orders.{said}")
    assert len(refused.splitlines()) == 1


def test_two_routes_may_not_take_from_one_topic_not_even_by_a_rule() -> None:
    rule = route_toml(KAFKA, "all", "*.delay", "*")
    assert refusal(route_toml(KAFKA) + rule) == (
        'some.toml: routes.all.intercept is "*.delay", which routes.orders intercepts already by "orders.delay"'
    )
    assert from_toml(route_toml(KAFKA, intercept="orders.later") + rule)


def test_a_route_may_not_deliver_to_what_another_takes_from() -> None:
    said = refusal(route_toml(KAFKA, deliver_to="in.delay", intercept="a") + route_toml(KAFKA, "all", "*.delay", "*"))
    assert 'routes.orders.deliver_to is "in.delay", which routes.all intercepts: messages would loop forever' in said


@pytest.mark.parametrize("more", ['also = ["a -> b"]', "binary_numbers = true", 'tombstones = "cancel"'])
def test_what_only_kafka_has_is_refused_on_a_route_of_rabbitmq(more: str) -> None:
    said = f"some.toml: routes.orders.{more.partition(' ')[0]} is only for Kafka: "
    assert refusal(route_toml(more)) == f'{said}set broker = "kafka" in this route, or remove it'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (route_toml(""), ""),
        ('[kafka]\ngroup = "g"\n' + route_toml(KAFKA), ""),
        ('[kafka]\ngroup = "g"\n' + route_toml(KAFKA) + route_toml("", "mq", "in", "out"), ""),
        ('[kafka]\ngroup = "g"\n' + route_toml('broker = "rabbitmq"'), ""),
        (
            '[kafka]\ngroup = "g"\n' + route_toml(""),
            'Set broker = "kafka" in [routes.orders]',
        ),
    ],
)
def test_a_kafka_section_that_no_route_uses_causes_a_warning(text: str, said: str) -> None:
    words = forgotten_broker(from_toml(text))
    assert said in words if said else words == ""


def test_a_star_in_the_name_of_an_exchange_is_a_star() -> None:
    assert from_toml(route_toml("", intercept="*.delay", deliver_to="*")).routes["orders"].deliver_to == "*"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('mode = "ladder"', "routes.orders.mode must be redis or levels on Kafka"),
        ('mode = "levels"\ntombstones = "cancel"', "routes.orders.tombstones is only for mode redis, not for levels"),
        (
            'mode = "levels"\nalso = ["postdate.* -> *"]',
            'routes.orders.also (item 1) is "postdate.*", which matches the level topics of routes.orders',
        ),
        (
            f'mode = "levels"\n[kafka]\ngroup = "{"g" * 193}"',
            "kafka.group and the route's name must have at most 198",
        ),
    ],
)
def test_a_wrong_level_setting_on_kafka_is_reported_in_one_line(more: str, said: str) -> None:
    refused = refusal(route_toml(KAFKA + more))
    assert refused.startswith(f"some.toml: {said}")
    assert len(refused.splitlines()) == 1


@pytest.mark.parametrize(
    "intercept", ["*.delay", "*.later", "x.*", "postdate.pay.dead.*", "postdate.pays.*", "*.level", "*.f10e3", "*.1s"]
)
def test_a_rule_that_no_topic_of_another_routes_levels_can_match_is_allowed_beside_it(intercept: str) -> None:
    levels = route_toml(KAFKA + 'mode = "levels"', "pay", "pay.in", "pay")
    assert from_toml(levels + route_toml(KAFKA, "all", intercept, "out.*"))


def test_every_rule_that_matches_a_topic_of_another_routes_levels_is_refused() -> None:
    levels = route_toml(KAFKA + 'mode = "levels"', "pay", "pay.in", "pay")
    topics = level_topics(from_toml(levels + '[headers]\nlevels = ["500ms", "1h30m"]\n'), "pay")
    for name in (*topics.levels.values(), topics.dead):
        for start, end in combinations(range(len(name) + 1), 2):
            rule = Naming(f"{name[:start]}*{name[end:]}", "")
            assert takes_level_topic(rule, "postdate.pay."), rule
        assert takes_level_topic(Naming(name, ""), "postdate.pay.")


def test_no_route_may_take_from_where_the_records_of_another_wait() -> None:
    levels = route_toml(KAFKA + 'mode = "levels"', "pay", "pay.delay", "pay")
    said = refusal(levels + route_toml(KAFKA, "dead", "*.dead", "*"))
    assert 'routes.dead.intercept is "*.dead", which matches the level topics of routes.pay: "postdate.pay.*"' in said
