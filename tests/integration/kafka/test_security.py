"""A Kafka with every kind of security: how postdate connects, and what it reports when it is refused."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from adapters.kafka.raw.record import Record
from bridge.core.message import Outcome
from tests.bridge_process import Bridge, store_client, toml
from tests.devstack import kafka_admin
from tests.devstack.kafka_secure import PASSWORD, PLAIN_USER, SecureKafka
from tests.devstack.oauth import SECRET
from tests.devstack.service import wait_for
from tests.integration.kafka.rig import Sink, Source, Topics, claim, to
from tests.preloaded import run_postdate

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
RECORD = Record(0, 1_700_000_000_000, b"k", b"v", [])


def rules(kafka: SecureKafka, protocol: str, mechanism: str, user: str) -> dict[str, Any]:
    """The settings of [kafka] for one way in."""
    wanted: dict[str, Any] = {"bootstrap_servers": kafka.urls[protocol], "security_protocol": protocol}
    if "SSL" in protocol:
        wanted["ca_file"] = str(kafka.ca)
    if protocol == "SSL":
        return {**wanted, "cert_file": str(kafka.client.cert), "key_file": str(kafka.client.key)}
    return {**wanted, "sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": PASSWORD}


@pytest.fixture
def user(secure_kafka: SecureKafka, request: pytest.FixtureRequest) -> str:
    """A user of the test's own."""
    name = f"u{abs(hash(request.node.nodeid)) % 10**9}"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        secure_kafka.add_user(name, mechanism)
    return name


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ],
)
async def test_records_pass_through_every_kind_of_connection(
    secure_kafka: SecureKafka, user: str, protocol: str, mechanism: str
) -> None:
    who = {"SSL": "CN=client", "PLAIN": PLAIN_USER}.get(mechanism or protocol, user)
    async with Topics(secure_kafka.url, f"s{user}") as topics:
        topic = await topics.make("target")
        secure_kafka.allow(who, ResourceType.TOPIC, topic, (READ, WRITE, DESCRIBE))
        secure_kafka.allow(who, ResourceType.GROUP, user, (READ,))
        given = rules(secure_kafka, protocol, mechanism, user if who == "CN=client" else who)
        async with Sink(topics, {"orders": to(topic)}, **given) as sink:
            (result,) = await sink.publish(claim(1, RECORD))
            assert result.outcome is Outcome.CONFIRMED, result
        async with Source(topics, user, [topic], **given) as source:
            (delivery,) = await source.take(1)
    assert delivery.origin is not None


# -- postdate as its users see it --------------------------------------------------------------------------------------


class Line:
    """A bridge with the routes ``good`` and ``bad``, on topics that its user may use as far as a test allows it."""

    def __init__(self, kafka: SecureKafka, user: str, store_url: str, folder: Path) -> None:
        self.kafka, self.user, self.folder, self.store_url = kafka, user, folder, store_url
        self.topics = {
            f"{route}.{end}": kafka_admin.create_topic(kafka.url) for route in ("good", "bad") for end in ("in", "out")
        }
        self.settings: dict[str, Any] = {
            "redis": {"url": store_url, "key_prefix": user},
            "kafka": {**rules(kafka, "SASL_SSL", "SCRAM-SHA-512", user), "group": user, "session_timeout": "2s"},
            "retry": {"first": "200ms", "attempts": 3},
            "bridge": {"setup": False},
            "log": {"format": "json"},
            "routes": {
                route: {
                    "broker": "kafka",
                    "intercept": self.topics[f"{route}.in"],
                    "deliver_to": self.topics[f"{route}.out"],
                }
                for route in ("good", "bad")
            },
        }
        self._producer = Producer({"bootstrap.servers": kafka.url, "log_level": 0})

    def allow(self, group: bool = True, bad: tuple[AclOperation, ...] = (WRITE, DESCRIBE)) -> None:
        """Everything that postdate needs, or not."""
        for route in ("good", "bad"):
            self.kafka.allow(self.user, ResourceType.TOPIC, self.topics[f"{route}.in"], (READ, DESCRIBE))
        self.kafka.allow(self.user, ResourceType.TOPIC, self.topics["good.out"], (WRITE, DESCRIBE))
        if bad:
            self.kafka.allow(self.user, ResourceType.TOPIC, self.topics["bad.out"], bad)
        if group:
            self.kafka.allow(self.user, ResourceType.GROUP, self.user, (READ,))

    def bridge(self) -> Bridge:
        return Bridge(self.folder, self.settings)

    def produce(self, route: str, value: bytes, delay_ms: int = 0, flush: bool = True) -> None:
        headers: Any = [("x-delay", b"%d" % delay_ms)]
        self._producer.produce(self.topics[f"{route}.in"], value=value, headers=headers)
        assert not flush or self._producer.flush(20) == 0

    def short_sessions(self, login: Mapping[str, Any]) -> None:
        """Let the bridge use the listener that ends connections early."""
        kept = {name: self.settings["kafka"][name] for name in ("group", "session_timeout")}
        self.settings["kafka"] = {**kept, **login, "bootstrap_servers": self.kafka.short_url}

    def traffic(self, for_s: float, at: Mapping[float, Callable[[], None]] | None = None, rate: int = 20) -> float:
        """Produce to the good route ``rate`` times a second, and return the longest gap (s) between two arrivals.

        ``at``: what to do when. Every record arrives, none twice.
        """
        consumer = Consumer({"bootstrap.servers": self.kafka.url, "group.id": "none", "log_level": 0})
        consumer.assign([TopicPartition(self.topics["good.out"], 0, OFFSET_BEGINNING)])
        began, sent, values, moments = time.monotonic(), 0, list[bytes | None](), list[float]()
        left = dict(at or {})
        while len(values) < for_s * rate:
            now = time.monotonic() - began
            assert now < for_s + 20, f"{len(values)} of {sent}"
            for moment in [moment for moment in left if moment < now]:
                left.pop(moment)()
            while sent < min(now, for_s) * rate:
                self.produce("good", b"%d" % sent, 200, flush=False)
                sent += 1
            self._producer.poll(0)
            came = [message.value() for message in consumer.consume(100, 0.02)]
            values += came
            moments += [time.monotonic()] * len(came)
        consumer.close()
        assert len(values) == len(set(values)) == for_s * rate
        gap_s = max(later - earlier for earlier, later in pairwise(moments))
        print(f"longest gap: {gap_s:.2f} s")
        return gap_s

    def arrivals(self, route: str, count: int) -> list[tuple[bytes | None, float]]:
        """Values that arrive at a route's consumers, and when; at least so many."""
        consumer = Consumer({"bootstrap.servers": self.kafka.url, "group.id": "none", "log_level": 0})
        consumer.assign([TopicPartition(self.topics[f"{route}.out"], 0, OFFSET_BEGINNING)])
        found: list[tuple[bytes | None, float]] = []
        give_up = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < give_up, f"{len(found)} of {count}"
            found += [(message.value(), time.time()) for message in consumer.consume(100, 0.1)]
        consumer.close()
        return found

    def dead(self) -> list[str]:
        with store_client(self.store_url) as client:
            found = []
            for key in client.keys(f"{{{self.user}.kafka:*}}:dead"):  # a refused message has a reason, too
                whys = client.hgetall(key.removesuffix(b":dead") + b":why")
                found += [whys.get(name, b"").decode() for name in client.zrange(key, 0, -1)]
            return found

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        file = self.folder / "command.toml"
        file.write_text(toml(self.settings))
        file.chmod(0o600)
        return run_postdate([*words, "--config", str(file)], self.folder)

    def check(self) -> tuple[int, list[dict[str, str]]]:
        """The exit code of ``postdate check``, and what it finds about the broker."""
        done = self.command("check", "-o", "json")
        assert not done.stderr, done.stderr
        return done.returncode, [row for row in json.loads(done.stdout) if row["subject"] != "instances"]


@pytest.fixture
def line(secure_kafka: SecureKafka, user: str, redis_url: str, tmp_path: Path) -> Iterator[Line]:
    line = Line(secure_kafka, user, redis_url, tmp_path)
    yield line
    kafka_admin.delete_topics(secure_kafka.url, list(line.topics.values()))


def test_an_unwritable_topic_makes_dead_letters_and_delays_no_other(line: Line) -> None:
    line.allow(bad=(DESCRIBE,))
    with line.bridge().start() as bridge:
        bridge.wait_ready()
        for number in range(20):
            line.produce("bad", b"bad %d" % number)
            line.produce("good", b"%d" % number, 100)
        sent = time.time()
        found = line.arrivals("good", 20)
        assert [value for value, _ in found] == [b"%d" % number for number in range(20)]
        assert found[-1][1] - sent < 5
        wait_for(lambda: len(line.dead()) == 20, f"dead letters: {line.dead()}")
        assert {why.partition(":")[0] for why in line.dead()} == {"forbidden"}
        assert f"postdate may not write to topic '{line.topics['bad.out']}'" in line.dead()[0]
        # The right comes, and the dead letters are tried again.
        line.kafka.allow(line.user, ResourceType.TOPIC, line.topics["bad.out"], (WRITE,))
        assert line.command("retry", "--all", "--reason", "forbidden", "--yes").returncode == 0
        assert len(line.arrivals("bad", 20)) == 20


@pytest.mark.long
def test_a_transactional_route_says_which_right_it_lacks_and_delivers_once_it_has_it(line: Line) -> None:
    line.allow()
    line.settings["kafka"]["release"] = "transactional"
    markers = kafka_admin.create_topic(line.kafka.url, 8, name=f"{line.user}.released")
    line.kafka.allow(line.user, ResourceType.TOPIC, markers, (READ, WRITE, DESCRIBE))
    with line.bridge().start() as bridge:
        bridge.wait_ready()
        line.produce("good", b"waits")
        lacks = f"user '{line.user}' may not use the transactional ids '{markers}.*'. Grant Write and Describe"
        bridge.wait_health(lacks)
        assert f"no transaction can begin: {lacks}" in line.command("doctor").stdout
        line.kafka.allow(line.user, ResourceType.TRANSACTIONAL_ID, markers, (WRITE, DESCRIBE), prefixed=True)
        assert [value for value, _ in line.arrivals("good", 1)] == [b"waits"]
        bridge.wait_health("All well.")
    kafka_admin.delete_topics(line.kafka.url, [markers])


def test_a_forbidden_group_is_logged_once_until_postdate_joins_it(line: Line) -> None:
    line.allow(group=False)
    with line.bridge().start() as bridge:
        bridge.wait_health(f"user '{line.user}' may not read as the consumer group '{line.user}'")
        line.produce("good", b"waits")
        until = time.monotonic() + 5
        wait_for(lambda: time.monotonic() > until, "it tried for five seconds")
        said = [row for row in bridge.events() if row.get("subject", "").startswith("kafka")]
        assert [(row["event"], row["subject"]) for row in said] == [("trouble", "kafka intake")]
        line.kafka.allow(line.user, ResourceType.GROUP, line.user, (READ,))
        assert [value for value, _ in line.arrivals("good", 1)] == [b"waits"]
        bridge.wait_health("All well.")
        wait_for(lambda: any(row["event"] == "well again" for row in bridge.events()), "the log says so a second later")
        said = [row for row in bridge.events() if row.get("subject", "").startswith("kafka")]
        assert [row["event"] for row in said] == ["trouble", "well again"]


def test_check_does_not_call_an_invisible_topic_missing(line: Line) -> None:
    line.allow(bad=())
    code, found = line.check()
    (failed,) = [row for row in found if row["level"] == "FAIL"]
    assert failed["text"] == (
        f"postdate may not see topic '{line.topics['bad.out']}', to which route bad delivers (no Describe permission), "
        "so due records are refused. Grant its user Write and Describe, or correct routes.bad"
    )
    assert code == 1
    del line.settings["routes"]["bad"]
    line.settings["routes"]["good"]["intercept"] = "nobody.allowed.it"
    code, found = line.check()
    (failed,) = [row for row in found if row["level"] == "FAIL"]
    assert failed["text"] == (
        "postdate may not see topic 'nobody.allowed.it' of route good (no Describe permission), so it cannot tell "
        "whether the topic exists. Grant its user Read and Describe"
    )


def wrong_password(line: Line) -> str:
    line.settings["kafka"]["sasl_password"] = "wrong"
    return (
        f"{line.kafka.urls['SASL_SSL']} does not let user '{line.user}' in by SCRAM-SHA-512. The user is unknown, or "
        "the password is wrong"
    )


def unknown_authority(line: Line) -> str:
    del line.settings["kafka"]["ca_file"]
    return f"the certificate of {line.kafka.urls['SASL_SSL']} is not trusted"


def no_tls_there(line: Line) -> str:
    line.settings["kafka"] |= {"bootstrap_servers": line.kafka.url}
    return f"{line.kafka.url} hangs up"


def no_tls_here(line: Line) -> str:
    line.settings["kafka"] = {"bootstrap_servers": line.kafka.urls["SASL_SSL"]}
    return f"{line.kafka.urls['SASL_SSL']} hangs up"


def no_certificate(line: Line) -> str:
    given = rules(line.kafka, "SSL", "", "")
    line.settings["kafka"] = {name: given[name] for name in ("bootstrap_servers", "security_protocol", "ca_file")}
    return f"{line.kafka.urls['SSL']} hangs up"


@pytest.mark.parametrize("mistake", [wrong_password, unknown_authority, no_tls_there, no_tls_here, no_certificate])
def test_check_explains_a_refused_connection_in_one_sentence_and_exits_with_4(line: Line, mistake: Any) -> None:
    words = mistake(line)
    code, found = line.check()
    (broker,) = [row for row in found if row["subject"] == "broker"]
    assert broker["text"].startswith(words), broker["text"]
    assert "\n" not in broker["text"]
    assert PASSWORD not in str(found)
    assert code == 4


def test_a_refused_bridge_reports_it_waits_and_starts_when_accepted(line: Line) -> None:
    line.allow()
    words = wrong_password(line)
    line.produce("good", b"waits")
    with line.bridge().start() as bridge:
        bridge.wait_log(words)
        assert bridge.running()
        # The password is changed there, to what postdate believed.
        line.kafka.add_user(line.user, "SCRAM-SHA-512", "wrong")
        assert [value for value, _ in line.arrivals("good", 1)] == [b"waits"]


def test_a_password_that_changes_under_traffic_loses_nothing_and_needs_no_restart(line: Line) -> None:
    line.allow()
    secret = line.folder / "secret"
    secret.write_text(PASSWORD)
    login = rules(line.kafka, "SASL_PLAINTEXT", "SCRAM-SHA-512", line.user)
    del login["sasl_password"]
    line.short_sessions({**login, "sasl_password_file": str(secret)})

    def change() -> None:
        line.kafka.add_user(line.user, "SCRAM-SHA-512", "another one")
        secret.write_text("another one\n")

    with line.bridge().start() as bridge:
        bridge.wait_ready()
        # Kafka ends every connection after three seconds: all of them are new twice while this runs.
        gap_s = line.traffic(8, {2.0: change})
        assert gap_s < 2, bridge.log_tail()
        assert bridge.running()
        assert "does not let user" not in bridge.log()


@pytest.mark.long
def test_passwords_that_change_again_and_again_at_500_a_second_lose_nothing(line: Line) -> None:
    line.allow()
    secret = line.folder / "secret"
    secret.write_text(PASSWORD)
    login = rules(line.kafka, "SASL_PLAINTEXT", "SCRAM-SHA-512", line.user)
    del login["sasl_password"]
    line.short_sessions({**login, "sasl_password_file": str(secret)})

    def change(number: int) -> None:
        line.kafka.add_user(line.user, "SCRAM-SHA-512", f"number {number}")
        secret.write_text(f"number {number}\n")

    with line.bridge().start() as bridge:
        bridge.wait_ready()
        assert line.traffic(60, {5.0 * number: partial(change, number) for number in range(1, 11)}, 500) < 2
        assert bridge.running()


def oauth(line: Line, **more: object) -> dict[str, Any]:
    """The settings of [kafka] for a login by the tokens of the tests' own server."""
    issuer = line.kafka.issuer
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "oauth_token_url": issuer.token_url,
        "oauth_client_id": "postdate",
        "oauth_client_secret": SECRET,
        **more,
    }


@pytest.fixture
def short_tokens(line: Line) -> Iterator[Line]:
    """A line whose user is the client of the token server, and whose tokens live for three seconds."""
    line.user, line.kafka.issuer.lifetime_s = "postdate", 3
    line.kafka.issuer.scopes.clear()
    yield line
    line.kafka.issuer.lifetime_s = 300


@pytest.mark.parametrize("release", ["plain", "transactional"])
def test_tokens_that_expire_under_traffic_lose_nothing_and_leave_no_gap(short_tokens: Line, release: str) -> None:
    line, issuer = short_tokens, short_tokens.kafka.issuer
    group = line.settings["kafka"]["group"]
    line.kafka.allow("postdate", ResourceType.GROUP, group, (READ,))
    line.allow(group=False)
    line.short_sessions(oauth(line, release=release, oauth_scope="produce consume"))
    if release == "transactional":
        markers = kafka_admin.create_topic(line.kafka.url, 8, name=f"{group}.released")
        line.kafka.allow("postdate", ResourceType.TOPIC, markers, (READ, WRITE, DESCRIBE))
        line.kafka.allow("postdate", ResourceType.TRANSACTIONAL_ID, markers, (WRITE, DESCRIBE), prefixed=True)
    with line.bridge().start() as bridge:
        bridge.wait_ready()
        issued = issuer.issued
        gap_s = line.traffic(12)  # three tokens and more expire
        assert issuer.issued - issued >= 3
        assert gap_s < 2, bridge.log_tail()
        bridge.wait_health("All well.")
        assert issuer.scopes == {"produce consume"}
    if release == "transactional":
        kafka_admin.delete_topics(line.kafka.url, [markers])


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (
            {"oauth_client_secret": "wrong"},
            "gives client 'postdate' no token (401 invalid_client the secret is wrong). Correct "
            "kafka.oauth_client_id, oauth_client_secret and oauth_scope",
        ),
        ({"oauth_token_url": "http://127.0.0.1:1/token"}, "no token from http://127.0.0.1:1/token"),
    ],
)
def test_check_explains_why_there_is_no_token(line: Line, mistake: dict[str, str], words: str) -> None:
    line.short_sessions(oauth(line) | mistake)
    code, found = line.check()
    (broker,) = [row for row in found if row["subject"] == "broker"]
    assert words in broker["text"], broker["text"]
    assert SECRET not in str(found)
    assert code == 4


def test_check_explains_that_kafka_refuses_a_token(line: Line) -> None:
    issuer = line.kafka.issuer
    issuer.audience = "another cluster"
    line.short_sessions(oauth(line))
    code, found = line.check()
    issuer.audience = "broker"
    (broker,) = [row for row in found if row["subject"] == "broker"]
    assert broker["text"].startswith(f"{line.kafka.short_url} refuses the token of 'postdate'"), broker["text"]
    assert code == 4
