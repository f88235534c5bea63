"""What retry routes, limits and several destinations need of the settings."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from bridge.core.errors import SettingsError
from bridge.settings import Settings, load

RETRY = '[routes.again]\nkind = "retry"\nqueue = "work"\n'
DELAY = '[routes.orders]\nintercept = "orders.delay"\n'
KAFKA = '[routes.again]\nkind = "retry"\nbroker = "kafka"\nintercept = "pay.failed"\ndeliver_to = "pay"\n'


@pytest.fixture
def read(tmp_path: pathlib.Path) -> Callable[[str], Settings]:
    def settings(text: str) -> Settings:
        file = tmp_path / "some.toml"
        file.write_text(text)
        return load(file, {})

    return settings


def test_a_schedule_is_a_list_or_grows(read: Callable[[str], Settings]) -> None:
    listed = read(RETRY + 'schedule = ["10s", "1m"]')
    assert listed.schedule_of("again") == (10_000, 60_000)
    grown = read(RETRY + 'first = "1s"\nfactor = 3\nmax = "5s"\nattempts = 4')
    assert grown.schedule_of("again") == (1000, 3000, 5000, 5000)
    unbounded = read(RETRY + 'first = "1s"\nattempts = 3')
    assert unbounded.schedule_of("again") == (1000, 2000, 4000)


def test_a_retry_route_takes_its_own_intake_and_not_the_queue_of_the_consumers(read: Callable[[str], Settings]) -> None:
    assert read(RETRY + 'schedule = ["1s"]').queue_of("again") == "postdate.again"


def test_several_destinations_keep_their_order(read: Callable[[str], Settings]) -> None:
    assert read(DELAY + 'deliver_to = ["a", "b"]').routes["orders"].targets == ("a", "b")
    assert read(DELAY + 'deliver_to = ["a"]').routes["orders"].deliver_to == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[routes.again]\nkind = "retry"\nschedule = ["1s"]', "routes.again.queue is required"),
        (RETRY, "routes.again.schedule is required"),
        (RETRY + 'first = "1s"', "routes.again.attempts is required"),
        (RETRY + 'schedule = ["1s"]\nattempts = 3', "routes.again.schedule must not be set together with attempts"),
        (RETRY + 'first = "2s"\nmax = "1s"\nattempts = 1', "routes.again.max must not be shorter than first"),
        (RETRY + 'schedule = ["1s"]\ndeliver_to = "x"', "routes.again.deliver_to must not be set: a retry route"),
        (RETRY + 'schedule = ["1s"]\ndialects = ["eta"]', "routes.again.dialects is only for delay routes"),
        (RETRY + 'schedule = ["1s"]\nmode = "levels"', "routes.again.mode must be redis on a retry route"),
        (RETRY + 'schedule = ["1s"]\nmode = "native"', "routes.again.mode must be redis on a retry route"),
        (RETRY + 'schedule = ["1s"]\nthen = "topic:x"', 'routes.again.then must be "dead" or "exchange:NAME"'),
        (RETRY + 'schedule = ["1s"]\nthen = "elsewhere"', 'routes.again.then must be "dead", "exchange:NAME"'),
        (RETRY + 'schedule = ["1s"]\nhold = true', "routes.again.hold is only for Kafka"),
        (
            KAFKA + 'schedule = ["1s"]\nthen = "topic:pay.failed"',
            'routes.again.then names "pay.failed", which this route intercepts: messages could loop forever',
        ),
        (
            KAFKA + 'schedule = ["1s"]\nthen = "topic:pay"',
            'routes.again.then names "pay", the destination of this route: messages could loop forever',
        ),
        (KAFKA + 'schedule = ["1s"]\nthen = "topic:a b"', 'routes.again.then names "a b", which cannot be the name'),
        ('[routes.r]\nkind = "retry"\nqueue = ""\nschedule = ["1s"]', "routes.r.queue must name the queue of the"),
        (RETRY.replace("work", "amq.x") + 'schedule = ["1s"]', 'routes.again.queue must not start with "amq."'),
        (RETRY.replace("work", "postdate.again") + 'schedule = ["1s"]', "an internal queue of postdate"),
        (
            RETRY + 'schedule = ["1s"]\n' + RETRY.replace("again", "second") + 'schedule = ["1s"]',
            'routes.second.queue is "work", whose rejected messages routes.again returns already',
        ),
        (RETRY + 'schedule = ["1s"]\nthen = "exchange:postdate.retry"', "routes.again.then names"),
        (KAFKA + 'schedule = ["1s"]\nqueue = "x"', "routes.again.queue is only for RabbitMQ"),
        (KAFKA.replace('deliver_to = "pay"', "") + 'schedule = ["1s"]', "routes.again.deliver_to is required"),
        (DELAY + 'deliver_to = "x"\nschedule = ["1s"]', "routes.orders.schedule is only for retry routes"),
        (DELAY + 'deliver_to = ["a", "a"]', "routes.orders.deliver_to must not contain a name twice"),
        (DELAY + 'deliver_to = ["a", "b"]\nmode = "levels"', "routes.orders.deliver_to must be one name"),
        (DELAY + 'deliver_to = "x"\nmode = "levels"\nmax_rate = 5', "routes.orders.max_rate is only for mode redis"),
        (DELAY + 'deliver_to = "x"\non_full = "dead"', "routes.orders.on_full requires max_parked"),
        (DELAY + 'deliver_to = "x"\njitter = "soon"', "routes.orders.jitter must be a share of the delay"),
        (DELAY + 'deliver_to = "x"\nrelease = "transactional"', "routes.orders.release is only for Kafka"),
    ],
)
def test_a_contradiction_is_refused_in_a_sentence(read: Callable[[str], Settings], text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert said in str(caught.value)


def test_only_a_process_that_listens_needs_a_token_for_a_public_address(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('[http]\nlisten = "0.0.0.0:8480"\n')
    assert load(file, {}).http.listen == "0.0.0.0:8480"
    with pytest.raises(SettingsError, match=r"requires auth\.admin_token"):
        load(file, {}, listening=True)
