"""Which names on RabbitMQ are postdate's own."""

from __future__ import annotations

import pytest

from adapters.rabbitmq.declarations import Exchange, Queue
from adapters.rabbitmq.topology.route_topology import plan
from bridge.settings import Settings, load
from bridge.settings.own_names import own_exchanges, own_queues

#: As text, with blanks in between, with a fraction: what a name is made of.
LEVELS = ["1ms", "1s", "1.5s", "1m 30s", "1d 2h 3m 4.005s", "3650d"]


pytestmark = pytest.mark.usefixtures("empty_directory")


def settings(**modes: str) -> Settings:
    routes = {
        name: {"intercept": f"{name}.delay", "deliver_to": "", "mode": mode, "queue": f"q.{name}"}
        for name, mode in modes.items()
    }
    return load(None, {}, {"headers.levels": LEVELS, "routes": routes})


def queues(made: Settings) -> set[str]:
    return {part.name for route in plan(made, native=True) for part in route.declarations() if isinstance(part, Queue)}


@pytest.mark.parametrize("mode", ["redis", "levels", "ladder", "native"])
def test_every_declared_queue_is_postdates_own(mode: str) -> None:
    made = settings(a=mode, b="levels")
    assert all(map(own_queues(made).fullmatch, queues(made)))


@pytest.mark.parametrize("mode", ["redis", "levels", "ladder", "native"])
def test_every_declared_exchange_but_the_fronts_is_postdates_own(mode: str) -> None:
    made = settings(a=mode, b="levels")
    named = {
        part.name for route in plan(made, native=True) for part in route.declarations() if isinstance(part, Exchange)
    }
    assert {name for name in named if not own_exchanges(made).fullmatch(name)} == {"a.delay", "b.delay"}


def test_a_queue_of_a_previous_mode_is_still_postdates_own() -> None:
    previous = {name for name in queues(settings(a="levels")) | queues(settings(a="ladder")) if "dead" not in name}
    assert all(map(own_queues(settings(a="redis")).fullmatch, previous))


@pytest.mark.parametrize(
    "name", ["", "q", "q.", "q.ab", "q_a", "q.a.reports", "q.a.due.reports", "q.a.level.reports", "x.q.a", ".dead"]
)
def test_a_queue_whose_name_only_begins_like_one_is_the_consumers(name: str) -> None:
    assert not own_queues(settings(a="levels")).fullmatch(name)


def test_a_route_with_a_store_has_no_queue_for_dead_letters() -> None:
    assert own_queues(settings(a="levels")).fullmatch("q.a.dead")
    assert not own_queues(settings(a="redis")).fullmatch("q.a.dead")
    assert not own_queues(settings(a="redis")).fullmatch(".dead")
