"""The settings: where values come from, which are refused and how, and that no secret is ever shown."""

from __future__ import annotations

import pickle
import re
import tomllib
import traceback
from collections.abc import Mapping
from itertools import pairwise
from logging import LogRecord
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.core.errors import SettingsError
from bridge.delay.header import KNOWN_DIALECTS, LEVELS_MS
from bridge.settings import Route, Settings, load, mask_url, require_routes
from bridge.settings.mistakes import nearest
from bridge.settings.names import dotted, leaves
from bridge.settings.values import size_in_bytes, write_size

MiB = 1024 * 1024
ROUTE = {"routes.orders.intercept": "orders.delay", "routes.orders.deliver_to": "orders"}


pytestmark = pytest.mark.usefixtures("empty_directory")


def from_toml(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    file = Path("some.toml")
    file.write_text(text, encoding="utf-8")
    return load(file, environ or {})


def refusal(toml: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None) -> str:
    file = Path("some.toml")
    file.write_text(toml, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load(file, environ or {}, flags or {})
    return str(caught.value)


def route_toml(
    more: str = "", name: str = "orders", intercept: str = "orders.delay", deliver_to: str = "orders"
) -> str:
    return f'[routes.{name}]\nintercept = "{intercept}"\ndeliver_to = "{deliver_to}"\n{more}\n'


def source_of(settings: Settings, name: str) -> str:
    return settings.origin.sources.get(name, "default")


class TestDefaults:
    def test_without_a_file_and_an_environment_every_setting_has_its_default(self) -> None:
        settings = load(None, {})
        assert settings.redis.url.get_secret_value() == "redis://127.0.0.1:6379/0"
        assert settings.rabbitmq.url.get_secret_value() == "amqp://guest:guest@127.0.0.1:5672/%2F"
        assert (settings.bridge.shutdown_grace, settings.dispatch.lease, settings.dispatch.takeover) == (
            25000,
            15000,
            4000,
        )
        assert (settings.limits.max_body, settings.limits.batch_bytes) == (17 * MiB, 8 * MiB)
        assert settings.limits.max_delay == 365 * 86_400_000
        assert settings.headers.levels == LEVELS_MS
        assert settings.routes == {}

    def test_settings_built_directly_do_not_look_into_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOG", '{"level": "debug"}')
        monkeypatch.setenv("REDIS__SHARDS", "3")
        assert Settings() == load(None, {})

    def test_settings_are_frozen(self) -> None:
        settings = load(None, {}, ROUTE)
        for part, name in ((settings, "redis"), (settings.redis, "shards"), (settings.routes["orders"], "queue")):
            with pytest.raises(ValidationError):
                setattr(part, name, "other")

    def test_settings_can_be_handed_to_a_worker_process(self) -> None:
        settings = load(None, {}, ROUTE)
        assert pickle.loads(pickle.dumps(settings)) == settings

    def test_a_route_inherits_settings_that_it_does_not_set(self) -> None:
        settings = load(
            None, {"POSTDATE_RABBITMQ__QUEUE_TYPE": "classic", "POSTDATE_HEADERS__ON_BAD": "deliver"}, ROUTE
        )
        assert settings.queue_of("orders") == "postdate.orders"
        assert settings.queue_type_of("orders") == "classic"
        assert settings.on_bad_of("orders") == "deliver"

    def test_a_routes_own_setting_overrides_the_inherited_one(self) -> None:
        settings = from_toml(route_toml('queue = "q"\nqueue_type = "classic"\non_bad = "deliver"'))
        assert settings.queue_of("orders") == "q"
        assert settings.queue_type_of("orders") == "classic"
        assert settings.on_bad_of("orders") == "deliver"

    def test_no_route_is_fine_for_loading_and_an_error_for_running(self) -> None:
        with pytest.raises(SettingsError, match=r"there is no \./postdate\.toml\. Name your settings file"):
            require_routes(load(None, {}))
        with pytest.raises(SettingsError, match=r"No route is set in some\.toml\. Add \[routes\.orders\]"):
            require_routes(from_toml(""))
        require_routes(load(None, {}, ROUTE))


class TestPrecedence:
    def test_flag_beats_environment_beats_secret_file_beats_toml_beats_default(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("redis://from-secret-file/0\n")
        toml = '[redis]\nurl = "redis://from-toml/0"'
        by_file = {"POSTDATE_REDIS__URL_FILE": str(secret)}
        by_both = by_file | {"POSTDATE_REDIS__URL": "redis://from-environment/0"}
        file = tmp_path / "order.toml"
        file.write_text(toml)
        ladder = [
            (load(None, {}), "redis://127.0.0.1:6379/0", "default"),
            (load(file, {}), "redis://from-toml/0", str(file)),
            (load(file, by_file), "redis://from-secret-file/0", f"file {secret}"),
            (load(file, by_both), "redis://from-environment/0", "environment"),
            (load(file, by_both, {"redis.url": "redis://from-flag/0"}), "redis://from-flag/0", "flag"),
        ]
        for settings, url, source in ladder:
            assert settings.redis.url.get_secret_value() == url
            assert source_of(settings, "redis.url") == source

    def test_sources_are_merged_setting_by_setting_and_not_table_by_table(self) -> None:
        settings = from_toml(route_toml('order = "none"'), {"POSTDATE_ROUTES__ORDERS__QUEUE": "q"})
        assert (settings.routes["orders"].order, settings.routes["orders"].queue) == ("none", "q")
        assert source_of(settings, "routes.orders.queue") == "environment"
        assert source_of(settings, "routes.orders.order") == "some.toml"

    def test_a_flag_that_was_not_given_changes_nothing(self) -> None:
        assert source_of(load(None, {}, {"log.level": None}), "log.level") == "default"

    def test_flags_may_come_as_names_with_dots_or_as_tables(self) -> None:
        settings = load(None, {}, {"redis": {"shards": 3}, "redis.timeout": "2s"})
        assert (settings.redis.shards, settings.redis.timeout) == (3, 2000)

    def test_a_wrong_value_that_is_overridden_does_no_harm(self) -> None:
        assert from_toml("[redis]\nshards = 0", {"POSTDATE_REDIS__SHARDS": "4"}).redis.shards == 4


class TestTheFile:
    def test_a_file_named_by_flag_that_is_missing_is_an_error(self) -> None:
        with pytest.raises(SettingsError, match=r"^missing\.toml: this file cannot be read: No such file"):
            load(Path("missing.toml"), {})

    def test_a_file_named_by_the_environment_that_is_missing_is_an_error(self) -> None:
        with pytest.raises(SettingsError, match=r"^gone\.toml: this file cannot be read"):
            load(None, {"POSTDATE_CONFIG": "gone.toml"})

    def test_a_missing_file_hides_no_other_mistake(self) -> None:
        with pytest.raises(SettingsError, match="POSTDATE_REDIS_URL"):
            load(Path("missing.toml"), {"POSTDATE_REDIS_URL": "x"})

    def test_a_directory_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
            load(tmp_path, {})

    def test_the_flag_wins_over_the_environment_over_the_default_file(self) -> None:
        for name, shards in (("postdate.toml", 2), ("env.toml", 3), ("flag.toml", 4)):
            Path(name).write_text(f"[redis]\nshards = {shards}")
        assert load(None, {}).redis.shards == 2
        assert load(None, {"POSTDATE_CONFIG": ""}).redis.shards == 2
        assert load(None, {"POSTDATE_CONFIG": "env.toml"}).redis.shards == 3
        assert load(Path("flag.toml"), {"POSTDATE_CONFIG": "env.toml"}).redis.shards == 4

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("[redis]\nurl = geheim", "line 2, column 7"),
            ('[redis]\nurl = "geheim', "line 2, column 14"),
            ("[redis]\nurl = [1,", "line 2, column 10"),
            ("[redis]\n[redis]", "line 2, column 7"),
        ],
    )
    def test_broken_toml_is_one_sentence_with_file_line_and_column(self, text: str, where: str) -> None:
        said = refusal(text)
        assert said.startswith(f"some.toml: {where} is not TOML: ")
        assert "\n" not in said
        assert "geheim" not in said

    def test_a_file_that_is_not_utf_8_names_the_line(self) -> None:
        Path("latin.toml").write_bytes(b'[redis]\npassword = "\xe4"')
        with pytest.raises(SettingsError, match=r"^latin\.toml: line 2 is not UTF-8 text$"):
            load(Path("latin.toml"), {})

    def test_a_byte_order_mark_is_no_mistake(self) -> None:
        Path("windows.toml").write_bytes(b"\xef\xbb\xbf[redis]\r\nshards = 2\r\n")
        assert load(Path("windows.toml"), {}).redis.shards == 2


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("toml", "name", "hint"),
        [
            ("[redis]\nurll = 1", "redis.urll", '"url"'),
            ("[redis]\nshard = 1", "redis.shard", '"shards"'),
            ("[redis]\nkey-prefix = 1", "redis.key-prefix", '"key_prefix"'),
            ("[redis]\nprefetch = 1", "redis.prefetch", '"rabbitmq.prefetch"'),
            ("[rediss]\nurl = 1", "rediss", '"redis"'),
            ("url = 1", "url", '"redis.url" or "rabbitmq.url" or "journal.url" or "webhook.url"'),
            ("[route.a]\nqueue = 1", "route", '"routes"'),
            (route_toml("quue = 1"), "routes.orders.quue", '"queue"'),
        ],
    )
    def test_in_the_file_they_are_errors_with_the_nearest_right_name(self, toml: str, name: str, hint: str) -> None:
        assert refusal(toml) == f'unknown setting "{name}" in some.toml. Did you mean {hint}?'

    @pytest.mark.parametrize(("toml", "name"), [("[xyzzy]", "xyzzy"), ("[kafka]\nbrokers = 1", "kafka.brokers")])
    def test_without_a_similar_name_there_is_no_advice(self, toml: str, name: str) -> None:
        assert refusal(toml) == f'unknown setting "{name}" in some.toml'

    @pytest.mark.parametrize("name", ["POSTDATE_KAFKA__SERVERS", "POSTDATE_LEVELS__LIST", "POSTDATE_FOO"])
    def test_a_variable_is_not_similar_to_another_one_of_its_section(self, name: str) -> None:
        assert refusal(environ={name: "x"}) == f'unknown setting "{name}" in the environment'

    @pytest.mark.parametrize(
        ("toml", "said"),
        [
            ("redis = 1", "redis must be a table: [redis]"),
            ("[[routes]]\nqueue = 1", "routes must be a table: [routes.orders]"),
            ("[redis.url]\nhost = 1", "redis.url must be a value, not a table"),
            ("[routes.orders]", "routes.orders needs intercept and deliver_to"),
        ],
    )
    def test_a_table_in_the_wrong_place_is_an_error(self, toml: str, said: str) -> None:
        assert refusal(toml) == f"some.toml: {said}"

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("POSTDATE_REDIS_URL", "POSTDATE_REDIS__URL"),
            ("POSTDATE_REDIS__URLL", "POSTDATE_REDIS__URL"),
            ("postdate_redis__url", "POSTDATE_REDIS__URL"),
            ("POSTDATE_REDIS_PASSWORD_FILE", "POSTDATE_REDIS__PASSWORD_FILE"),
            ("POSTDATE_CONFIGG", "POSTDATE_CONFIG"),
            ("POSTDATE_ROUTES_ORDERS_DELIVER_TO", "POSTDATE_ROUTES__ORDERS__DELIVER_TO"),
            ("POSTDATE_ROUTE__ORDERS__DELIVER_TO", "POSTDATE_ROUTES__ORDERS__DELIVER_TO"),
            ("POSTDATE_ROUTES__ORDERS__DELIVERTO", "POSTDATE_ROUTES__ORDERS__DELIVER_TO"),
        ],
    )
    def test_in_the_environment_they_are_errors_with_the_nearest_right_name(self, name: str, hint: str) -> None:
        said = refusal(environ={name: "x"})
        assert said == f'unknown setting "{name}" in the environment. Did you mean "{hint}"?'

    def test_a_port_that_no_link_has_set_is_an_error(self) -> None:
        said = refusal(environ={"POSTDATE_REDIS_PORT": "6379"})
        assert said.startswith('unknown setting "POSTDATE_REDIS_PORT" in the environment')

    def test_a_file_is_only_read_for_secrets(self) -> None:
        assert 'unknown setting "POSTDATE_REDIS__SHARDS_FILE"' in refusal(environ={"POSTDATE_REDIS__SHARDS_FILE": "x"})

    def test_on_the_command_line_they_are_errors_too(self) -> None:
        said = refusal(flags={"log.levl": "info"})
        assert said == 'unknown setting "log.levl" on the command line. Did you mean "level"?'

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("POSTDATE_TEST_REDIS", "x"),
            ("POSTDATE_DEVSTACK_PORT", "x"),
            ("POSTDATE_SERVICE_HOST", "10.0.0.1"),
            ("POSTDATE_SERVICE_PORT_HTTP", "8080"),
            ("POSTDATE_PORT", "tcp://10.0.0.1:8080"),
            ("POSTDATE_REDIS_PORT", "tcp://10.0.0.1:6379"),
            ("POSTDATE_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("POSTDATED_REDIS_URL", "x"),
            ("HOME", "x"),
        ],
    )
    def test_names_of_the_tests_of_kubernetes_and_of_others_are_left_alone(self, name: str, value: str) -> None:
        assert load(None, {name: value}) == load(None, {})

    def test_a_misspelt_route_in_the_environment_names_the_right_one(self) -> None:
        said = refusal(route_toml(), {"POSTDATE_ROUTES__ORDRES__QUEUE": "q"})
        assert said.splitlines() == [
            'environment: routes.ordres.intercept is required. Did you mean "routes.orders"?',
            'environment: routes.ordres.deliver_to is required. Did you mean "routes.orders"?',
        ]

    @given(st.text(max_size=30), st.lists(st.text(max_size=10), max_size=5))
    def test_the_nearest_name_is_one_of_the_names(self, word: str, names: list[str]) -> None:
        assert nearest(word, names) in {None, *names}


class TestRoutes:
    def test_a_route_can_come_from_the_environment_alone(self) -> None:
        prefix = "POSTDATE_ROUTES__BIG_ORDERS__"
        settings = load(None, {prefix + "INTERCEPT": "a", prefix + "DELIVER_TO": "", prefix + "DIALECTS": "eta, DELAY"})
        assert settings.routes["big_orders"].dialects == ("eta", "DELAY")
        assert settings.routes["big_orders"].deliver_to == ""

    @pytest.mark.parametrize(("name", "hint"), [("Mail", "mail"), ('"my-mail"', "my_mail"), ("9lives", "lives")])
    def test_a_bad_route_name_is_an_error_with_a_good_one(self, name: str, hint: str) -> None:
        said = refusal(route_toml(name=name))
        assert f"routes.{name.strip(chr(34))} is not a valid route name" in said
        assert said.endswith(f'Did you mean "{hint}"?')
        assert len(said.splitlines()) == 1

    def test_a_bad_route_name_in_the_environment_is_an_error(self) -> None:
        assert "POSTDATE_ROUTES__9X__QUEUE contains an invalid route name" in refusal(
            environ={"POSTDATE_ROUTES__9X__QUEUE": "q"}
        )

    def test_intercept_and_deliver_to_are_required(self) -> None:
        said = refusal('[routes.a]\norder = "key"')
        assert said.splitlines() == [
            "some.toml: routes.a.intercept is required",
            "some.toml: routes.a.deliver_to is required",
        ]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (
                'broker = "rabbit"',
                'routes.orders.broker must be one of rabbitmq, kafka (given: "rabbit"). Did you mean "rabbitmq"?',
            ),
            ('broker = "kafka"\nqueue = "q"', "routes.orders.queue is only for RabbitMQ: Kafka has no queues"),
            ('mode = "stairs"', "routes.orders.mode must be one of redis, levels, ladder"),
            (
                'order = "keys"',
                'routes.orders.order must be one of key, route, none (given: "keys"). Did you',
            ),
            ('queue = "amq.q"', 'routes.orders.queue must not start with "amq."'),
            (f'queue = "{"ä" * 128}"', "routes.orders.queue must be at most 255 bytes"),
            ('queue = "a\\nb"', "routes.orders.queue must not contain control characters"),
            ("queue = 7", "routes.orders.queue must be text in quotes"),
        ],
    )
    def test_a_wrong_value_in_a_route_is_an_error(self, more: str, said: str) -> None:
        assert refusal(route_toml(more)).startswith(f"some.toml: {said}")

    def test_an_unknown_dialect_is_an_error_with_the_nearest_known_one(self) -> None:
        said = refusal(route_toml('dialects = ["eta", "timer-delay-ms"]'))
        assert "routes.orders.dialects (item 2)" in said
        assert said.endswith('Did you mean "TIMER_DELAY_MS"?')

    @pytest.mark.parametrize(
        ("intercept", "deliver_to", "said"),
        [
            ("", "b", "intercept must not be empty"),
            ("amq.topic", "b", 'intercept must not start with "amq."'),
            ("a", "a", 'deliver_to is "a", which this route intercepts: messages would loop forever'),
        ],
    )
    def test_what_cannot_be_intercepted_is_an_error(self, intercept: str, deliver_to: str, said: str) -> None:
        assert f"routes.orders.{said}" in refusal(route_toml(intercept=intercept, deliver_to=deliver_to))

    def test_delivering_to_what_another_route_intercepts_is_an_error(self) -> None:
        said = refusal(route_toml(name="a", intercept="x", deliver_to="y") + route_toml(name="b", intercept="y"))
        assert said == 'some.toml: routes.a.deliver_to is "y", which routes.b intercepts: messages would loop forever'

    @pytest.mark.parametrize("part", ["plain", "level", "dead", "due.0123ab"])
    def test_delivering_to_an_exchange_of_postdates_own_is_an_error(self, part: str) -> None:
        route = route_toml('mode = "levels"', deliver_to=f"postdate.orders.{part}")
        assert refusal(route) == (
            f'some.toml: routes.orders.deliver_to is "postdate.orders.{part}", an exchange that postdate declares '
            "for itself: name your own exchange"
        )

    def test_a_level_longer_than_a_queue_of_rabbitmq_may_wait_is_an_error(self) -> None:
        levels = '[headers]\nlevels = ["1s", "5000d", "3650d"]\n'
        assert refusal(levels + route_toml('mode = "levels"')) == (
            "some.toml: headers.levels contains 5000d, but RabbitMQ's limit is 3650d (x-message-ttl = 315360000000)"
        )

    @pytest.mark.parametrize(
        ("more", "level"),
        [
            ('mode = "levels"', "3650d"),
            ('mode = "levels"\nbroker = "kafka"', "5000d"),
            ('mode = "ladder"', "5000d"),
            ('mode = "redis"', "5000d"),
        ],
    )
    def test_where_no_queue_has_the_time_of_a_level_it_may_be_longer(self, more: str, level: str) -> None:
        Path("some.toml").write_text(f'[headers]\nlevels = ["{level}"]\n' + route_toml(more))
        assert load(Path("some.toml"), {}).headers.levels == (int(level[:-1]) * 86_400_000,)

    def test_two_routes_may_not_intercept_one_exchange(self) -> None:
        said = refusal(route_toml(name="a") + route_toml(name="b"))
        assert said == ('some.toml: routes.b.intercept is "orders.delay", which routes.a intercepts already')

    def test_two_routes_may_not_share_a_queue_not_even_by_its_default_name(self) -> None:
        said = refusal(
            route_toml('queue = "postdate.b"', name="a", intercept="x") + route_toml(name="b", intercept="y")
        )
        assert 'is "postdate.b", which is already the queue of routes.a' in said

    def test_a_queue_name_made_from_a_route_name_is_bounded_too(self) -> None:
        said = refusal(route_toml(name="a" * 250))
        assert "queue, which must be set: the default name contains the route's and is over 255 bytes" in said


class TestValues:
    @pytest.mark.parametrize(
        ("text", "ms"),
        [("500ms", 500), ("36h", 129_600_000), ("1h 30m", 5_400_000), ("PT15M", 900_000), (" 2s ", 2000)],
    )
    def test_a_duration_is_stored_as_whole_milliseconds(self, text: str, ms: int) -> None:
        assert load(None, {"POSTDATE_RETRY__MAX": text}).retry.max == ms

    @pytest.mark.parametrize("toml", ["30", "1.5", '"30"', '" 30 "', '"-5"'])
    def test_a_bare_number_is_no_duration(self, toml: str) -> None:
        assert 'redis.timeout needs a unit, such as "30s"' in refusal(f"[redis]\ntimeout = {toml}")

    @pytest.mark.parametrize("toml", ['"soon"', '""', '"5 parsecs"', "2026-01-01", "[]", '"1mo"', "true"])
    def test_other_text_is_no_duration_either(self, toml: str) -> None:
        assert "redis.timeout must be a duration" in refusal(f"[redis]\ntimeout = {toml}")

    @pytest.mark.parametrize(
        ("text", "size"), [("64MiB", 64 * MiB), ("8MB", 8_000_000), ("512 KiB", 524_288), ("1gib", 1024 * MiB)]
    )
    def test_a_size_is_stored_as_whole_bytes(self, text: str, size: int) -> None:
        assert load(None, {"POSTDATE_LIMITS__WINDOW_BYTES": text}).limits.window_bytes == size

    @pytest.mark.parametrize("toml", ["64", '"64"', "6.4"])
    def test_a_bare_number_is_no_size(self, toml: str) -> None:
        assert 'needs a unit, such as "64MiB"' in refusal(f"[limits]\nmax_body = {toml}")

    @pytest.mark.parametrize("toml", ['"64 parrots"', '"MiB"', "[]", '"-1MiB"', '"1.5MiB"'])
    def test_other_text_is_no_size_either(self, toml: str) -> None:
        assert "limits.max_body must be a size" in refusal(f"[limits]\nmax_body = {toml}")

    @given(st.integers(min_value=1, max_value=10**14))
    def test_a_size_is_written_so_that_it_reads_back(self, size: int) -> None:
        assert size_in_bytes(write_size(size)) == size

    @pytest.mark.parametrize(
        ("name", "value", "must"),
        [
            ("bridge.workers", "0", "must be a whole number from 1 to 64"),
            ("bridge.workers", True, "must be a whole number from 1 to 64"),
            ("bridge.workers", 1.5, "must be a whole number from 1 to 64"),
            ("bridge.name", "a b", "must be 1 to 64 letters"),
            ("bridge.setup", "perhaps", "must be true or false"),
            ("bridge.shutdown_grace", "0s", "must be from 1ms to 1h"),
            ("redis.shards", "257", "must be a whole number from 1 to 256"),
            ("redis.key_prefix", "a{b}", "no braces"),
            ("redis.key_prefix", "", "1 to 64"),
            ("redis.key_prefix", "a\n", "1 to 64"),
            ("redis.durability", "everysecond", 'Did you mean "everysec"?'),
            ("redis.username", 5, "must be text in quotes"),
            ("redis.password", "\udcff", "must be UTF-8 text"),
            ("rabbitmq.heartbeat", "1500ms", "must be a multiple of 1s"),
            ("rabbitmq.prefetch", 0, "from 1 to 65535"),
            ("rabbitmq.window", 65536, "from 1 to 65535"),
            ("rabbitmq.queue_type", "stream", "must be one of quorum, classic"),
            ("headers.on_bad", "drop", "must be one of dead, deliver"),
            ("headers.levels", [], "must not be empty"),
            ("headers.levels", ["1s", "2"], "(item 2) needs a unit"),
            ("headers.levels", 7, "must be a list of texts"),
            ("limits.max_body", "1GiB", "must be from 1B to 500MiB"),
            ("limits.batch_max", 0, "from 1 to 5000"),
            ("dispatch.lease", "1s", "must be from 3s to 1h"),
            ("dispatch.pace", "0ms", "must be from 1ms to 1s"),
            ("retry.factor", "0.5", "must be a number from 1.0 to 100.0"),
            ("retry.factor", float("nan"), "must be a number"),
            ("retry.attempts", "8.0", "must be a whole number"),
            ("log.level", "warn", 'Did you mean "warning"?'),
        ],
    )
    def test_a_value_out_of_its_range_is_an_error(self, name: str, value: object, must: str) -> None:
        said = refusal(flags={name: value})
        assert said.startswith(f"command line: {name} ")
        assert must in said

    @pytest.mark.parametrize(
        "url",
        [
            "redis://h",
            "rediss://u:p@h:6379/1",
            "redis://[::1]:6379/0",
            "redis+sentinel://a:1,b:2,c/main/0",
            "rediss+sentinel://u:p@a/main?sentinel_password=x",
            "rediss+cluster://a:1,b",
        ],
    )
    def test_these_are_urls_of_a_store(self, url: str) -> None:
        assert load(None, {"POSTDATE_REDIS__URL": url}).redis.url.get_secret_value() == url

    @pytest.mark.parametrize(
        ("url", "must"),
        [
            ("", "must be a URL that begins with redis://, rediss://"),
            ("127.0.0.1:6379", "must be a URL that begins with"),
            ("unix:///run/redis", "must begin with redis://, rediss://"),
            ("redsi://h", 'Did you mean "redis"?'),
            ("redis://", "must name a host"),
            ("redis://h:0", "port from 1 to 65535"),
            ("redis://h:99999", "port from 1 to 65535"),
            ("redis://:secret", "must name a host"),
            ("redis://u:pa/ss@h", "as %2F"),
            ("redis://u:p@ss@h", "as %40"),
            ("redis://u:p#ss@h", "as %23"),
            ("redis://a,b", "must name one host"),
            ("redis://h/x", "the database"),
            ("redis+sentinel://a:1,b", "must end in the name of the Sentinels' master"),
            ("rediss+sentinel://a/", "must end in the name of"),
            ("redis+sentinel://a/?sentinel_password=x", "must end in the name of"),
            ("redis+sentinel://a/main/x", "optionally with a database number"),
            ("redis://h h", "spaces or line breaks"),
        ],
    )
    def test_these_are_no_urls_of_a_store(self, url: str, must: str) -> None:
        said = refusal(environ={"POSTDATE_REDIS__URL": url})
        assert said.startswith("environment: POSTDATE_REDIS__URL ")
        assert must in said

    @pytest.mark.parametrize(
        "url", ["http://h", "amqp://", "amqp://a,,b", "amqp://a,b:x", "amqp://u:p@h:x/", "amqp://h/v?heartbeat=abc"]
    )
    def test_these_are_no_urls_of_a_broker(self, url: str) -> None:
        assert "POSTDATE_RABBITMQ__URL must " in refusal(environ={"POSTDATE_RABBITMQ__URL": url})

    @pytest.mark.parametrize(
        "url", ["amqp://a,b", "amqp://shop:pass@a:1,b:2/%2F", "amqps://shop@a,b:5671,[::1]:5673/v", "amqp://[::1],b"]
    )
    def test_a_broker_may_have_several_hosts(self, url: str) -> None:
        settings = load(None, {"POSTDATE_RABBITMQ__URL": url})
        assert settings.rabbitmq.url.get_secret_value() == url

    @pytest.mark.parametrize("url", ["amqp://a,amqp://b", "amqp://u:sesame@a:1/,amqp://u:sesame@b:2/"])
    def test_several_urls_in_place_of_several_hosts_are_answered_with_the_right_form(self, url: str) -> None:
        said = refusal(environ={"POSTDATE_RABBITMQ__URL": url})
        assert '"amqp://user:password@a:5672,b:5672/%2F"' in said
        assert "sesame" not in said


class TestConflicts:
    def test_a_shard_is_taken_over_before_a_lease_ends(self) -> None:
        said = refusal('[dispatch]\ntakeover = "15s"')
        assert said == "some.toml: dispatch.takeover must be shorter than dispatch.lease (takeover 15s, lease 15s)"

    def test_a_conflict_with_a_default_stands_at_the_setting_that_was_changed(self) -> None:
        said = refusal('[dispatch]\nlease = "3s"')
        assert said.startswith("some.toml: dispatch.lease conflicts with dispatch.takeover, which must be shorter")

    def test_the_longest_wait_is_not_shorter_than_the_first(self) -> None:
        assert "retry.max must not be shorter than retry.first (max 1s, first 2s)" in refusal(
            '[retry]\nfirst = "2s"\nmax = "1s"'
        )

    def test_a_cold_tier_needs_a_journal_and_time_to_load(self) -> None:
        assert "journal.cold_after requires journal.url" in refusal('[journal]\ncold_after = "1h"')
        said = refusal('[journal]\nurl = "sqlite:////tmp/journal.db"\ncold_after = "30s"')
        assert said == 'some.toml: journal.cold_after must be from 1m to 3650d (given: "30s")'

    def test_several_workers_cannot_share_one_name(self) -> None:
        assert "bridge.instance must be empty if bridge.workers is more than 1" in refusal(
            '[bridge]\ninstance = "a"\nworkers = 2'
        )

    @pytest.mark.parametrize(("section", "url"), [("redis", "rediss+sentinel://h/main"), ("rabbitmq", "amqps://h/%2F")])
    def test_a_key_needs_its_certificate(self, section: str, url: str) -> None:
        Path("key.pem").touch()
        said = refusal(f'[{section}]\nurl = "{url}"\nkey_file = "key.pem"')
        assert said == f"some.toml: {section}.key_file requires {section}.cert_file"

    def test_a_certificate_without_tls_is_an_error_because_it_would_be_ignored(self) -> None:
        Path("ca.pem").touch()
        said = refusal('[redis]\nca_file = "ca.pem"\n[rabbitmq]\nca_file = "ca.pem"')
        assert said.splitlines() == [
            "some.toml: redis.ca_file requires TLS: redis.url must begin with rediss://",
            "some.toml: rabbitmq.ca_file requires TLS: rabbitmq.url must begin with amqps://",
        ]

    def test_a_certificate_that_does_not_exist_is_an_error(self) -> None:
        said = refusal('[redis]\nurl = "rediss://h"\nca_file = "gone.pem"')
        assert said == "some.toml: redis.ca_file names a file that does not exist"


class TestAllMistakesAtOnce:
    TOML = """
        [redis]
        urll = "redis://h"
        shards = 0
        timeout = 5
        [retry]
        first = "9s"
        max = "1s"
        [routes.orders]
        intercept = "x"
        deliver_to = "x"
        [routes.bills]
        intercept = "x"
        [log]
        level = "loud"
        """

    def test_unknown_names_wrong_values_and_conflicts_come_in_one_error_a_line_each(self) -> None:
        said = refusal(self.TOML, {"POSTDATE_REDIS_URL": "x", "POSTDATE_REDIS__REPLICAS": "x"}, {"log.form": "json"})
        about = [
            re.sub(r'^unknown setting "|^[^:]*: ', "", line).split(" ")[0].strip('"') for line in said.splitlines()
        ]
        assert about == [
            "log.form",
            "POSTDATE_REDIS_URL",
            "redis.urll",
            "redis.shards",
            "POSTDATE_REDIS__REPLICAS",
            "redis.timeout",
            "log.level",
            "routes.bills.deliver_to",
            "retry.max",
            "routes.orders.deliver_to",
        ]

    def test_a_conflict_is_not_reported_about_a_value_that_is_wrong_itself(self) -> None:
        assert (
            refusal('[dispatch]\nlease = "1s"\ntakeover = "16s"')
            == 'some.toml: dispatch.lease must be from 3s to 1h (given: "1s")'
        )


class TestSecrets:
    def test_a_secret_file_loses_its_last_line_break_and_nothing_else(self) -> None:
        for content, password in ((b"s p \n", "s p "), (b"sp\r\n", "sp"), (b"sp\n\n", "sp\n"), (b"sp", "sp")):
            Path("secret").write_bytes(content)
            settings = load(None, {"POSTDATE_RABBITMQ__PASSWORD_FILE": "secret"})
            assert settings.rabbitmq.password.get_secret_value() == password

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "it is empty"),
            (b"\n", "it is empty"),
            (b"\xff", "it is not UTF-8"),
            (b"x" * 70_000, "it is over 64"),
        ],
    )
    def test_a_secret_file_that_holds_no_secret_is_an_error(self, content: bytes, said: str) -> None:
        Path("secret").write_bytes(content)
        assert said in refusal(environ={"POSTDATE_REDIS__PASSWORD_FILE": "secret"})

    def test_a_missing_secret_file_is_an_error_with_its_path(self) -> None:
        said = refusal(environ={"POSTDATE_REDIS__URL_FILE": "/run/no/such"})
        assert said == (
            "environment: POSTDATE_REDIS__URL_FILE names a file /run/no/such that cannot be read: "
            "No such file or directory"
        )

    def test_a_password_given_in_place_of_a_path_is_not_repeated(self) -> None:
        assert "geheim" not in refusal(environ={"POSTDATE_REDIS__PASSWORD_FILE": "geheim"})

    def test_a_wrong_url_from_a_secret_file_is_reported_with_that_file(self) -> None:
        Path("secret").write_text("http://u:geheim@h")
        said = refusal(environ={"POSTDATE_REDIS__URL_FILE": "secret"})
        assert said.startswith("file secret: POSTDATE_REDIS__URL_FILE must begin with redis://")
        assert "geheim" not in said

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://h:1/0", "redis://h:1/0"),
            ("redis://:pw@h", "redis://:***@h"),
            ("redis://u:pw@h/0?password=x&db=1", "redis://u:***@h/0?password=***&db=***"),
            ("redis://onlyone@h", "redis://***@h"),
            ("amqp://u:p/w@x@h", "amqp://u:***@h"),
            ("nothing", "***"),
        ],
    )
    def test_a_url_is_shown_without_its_secrets(self, url: str, shown: str) -> None:
        assert mask_url(url) == shown

    def test_the_debugging_of_pydantic_settings_shows_no_secret(
        self, monkeypatch: pytest.MonkeyPatch, logged: list[LogRecord]
    ) -> None:
        monkeypatch.setenv("PYDANTIC_SETTINGS_DEBUG", "1")
        from_toml('[redis]\npassword = "geheim"\nurl = "redis://u:geheim@h"')
        text = "".join(record.getMessage() for record in logged)
        assert "redis" in text
        assert "geheim" not in text

    # A password of marked pieces with everything between them that takes a URL apart: no piece may be shown.
    passwords = st.lists(st.sampled_from(["", *"/@:#?%&=, \n\"'\\", "://"]), min_size=1, max_size=5).map(
        lambda signs: "s3cr3t" + "".join(f"{sign}s3cr3t" for sign in signs)
    )

    @given(
        passwords, st.sampled_from(["redis", "rabbitmq"]), st.sampled_from(["{}", "redis://u:{}@h", "amqp://u:{}@h"])
    )
    def test_a_password_appears_in_no_error_and_no_repr(self, password: str, section: str, form: str) -> None:
        text = form.format(password)
        for name in (f"{section}.url", f"{section}.password", f"{section}.passwrd", f"{section}.timeout", "retry.max"):
            for environ, flags in (({_env(name): text}, {}), ({}, {name: text})):
                assert "s3cr3t" not in _everything_said(environ, flags)

    @given(passwords)
    def test_a_password_in_a_broken_file_appears_in_no_error(self, password: str) -> None:
        for line in (f'url = "amqp://u:{password}@h"', f"password = {password}", f'passwrd = "{password}"'):
            file = Path("secret.toml")
            file.write_text(f"[rabbitmq]\n{line}\n", encoding="utf-8")
            assert "s3cr3t" not in _everything_said({"POSTDATE_CONFIG": "secret.toml"}, {})

    @given(st.text(min_size=5, max_size=40))
    def test_any_text_as_a_password_is_kept_exactly_and_not_shown(self, password: str) -> None:
        settings = load(None, {}, {"redis.password": password})
        assert settings.redis.password.get_secret_value() == password
        said = _everything_said({}, {"redis.password": "s3cr3t"})
        assume(password not in said)
        assert password not in _everything_said({}, {"redis.password": password})


class TestTheExampleFile:
    """config.example.toml is the manual: what it says about names and defaults is true."""

    FILE = Path(__file__).parents[2] / "config.example.toml"
    # "name = value", switched on or off by "# " in front; prose is indented or has no such shape.
    SHOWN = re.compile(r"(# )?(?P<name>[a-z][a-z0-9_]*) = (?P<value>.+)")

    def shown(self) -> dict[str, object]:
        """Every setting that the file shows, by its dotted name."""
        found: dict[str, object] = {}
        table = ""
        for line in re.sub(r",\n# +", ", ", self.FILE.read_text(encoding="utf-8")).splitlines():
            if line.startswith("["):
                table = line.strip("[]")
            elif match := self.SHOWN.fullmatch(line):
                name = f"{table}.{match['name']}"
                assert name not in found, f"{name} is shown twice"
                found[name] = tomllib.loads(f"value = {match['value']}")["value"]
        return found

    def test_it_loads(self) -> None:
        require_routes(load(self.FILE, {}))

    def test_it_shows_every_setting_and_nothing_else(self) -> None:
        names = [dotted(path) for path, _ in leaves()] + [f"routes.orders.{name}" for name in Route.model_fields]
        assert sorted(self.shown()) == sorted(names)

    def test_every_default_in_it_is_the_default(self) -> None:
        shown = load(None, {}, self.shown())
        assert shown.model_dump() == load(None, {}, ROUTE).model_dump()

    def test_it_differs_from_having_no_file_only_by_its_route(self) -> None:
        assert load(self.FILE, {}).model_dump() == load(None, {}, ROUTE).model_dump()

    def test_every_setting_has_prose_above_it(self) -> None:
        lines = self.FILE.read_text(encoding="utf-8").splitlines()
        for above, line in pairwise(lines):
            assert not self.SHOWN.fullmatch(line) or above.startswith("# ") or self.SHOWN.fullmatch(above), line

    def test_no_line_is_too_long_to_read(self) -> None:
        long = [line for line in self.FILE.read_text(encoding="utf-8").splitlines() if len(line) > 130]
        assert not long

    def test_the_five_settings_at_its_head_are_a_whole_file(self) -> None:
        head = self.FILE.read_text(encoding="utf-8").split("\n# Where a setting comes from")[0]
        five = "\n".join(line[6:] for line in head.splitlines() if line.startswith("#     "))
        settings = from_toml(five)
        assert len(settings.origin.sources) == 5
        require_routes(settings)

    def test_the_names_of_the_environment_in_it_are_right(self) -> None:
        text = self.FILE.read_text(encoding="utf-8")
        named = dict(re.findall(r"(POSTDATE_[A-Z]+__[A-Z_]+)=(\S+)", text))
        assert len(named) == 4
        secret = named.pop("POSTDATE_REDIS__PASSWORD_FILE")
        assert secret.startswith("/run/secrets/")
        assert load(self.FILE, named).routes["orders"].dialects == ("eta", "DELAY")

    def test_it_names_every_dialect(self) -> None:
        text = self.FILE.read_text(encoding="utf-8")
        assert [name for name in KNOWN_DIALECTS if name not in text] == []


def _env(name: str) -> str:
    return "POSTDATE_" + name.replace(".", "__").upper()


def _everything_said(environ: Mapping[str, str], flags: Mapping[str, object]) -> str:
    """All text that loading can show to anybody: the whole traceback, or the description and the repr."""
    try:
        settings = load(None, environ, flags)
    except SettingsError as error:
        return str(error) + repr(error) + repr(error.__cause__) + repr(error.__context__) + _last_lines(error)
    return repr(settings) + str(settings) + repr(settings.origin)


def _last_lines(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def test_a_table_that_occurs_twice_is_reported_in_toml_syntax(tmp_path: Path) -> None:
    file = tmp_path / "postdate.toml"
    file.write_text("[routes.orders]\n[routes.orders]\n")
    with pytest.raises(SettingsError, match=r"the table \[routes\.orders\] occurs twice"):
        load(file, {})
