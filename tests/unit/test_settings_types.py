"""Every setting, given something of another type: one line with its place, the value and the allowed values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from bridge.core.errors import SettingsError
from bridge.settings import Route, load
from bridge.settings.names import dotted, is_secret, leaves, leaves_of, rule_of
from bridge.settings.values import ListOf, Number, Rule, Whole

LEAVES = {dotted(path): field for path, field in leaves()}
LEAVES |= {f"routes.orders.{name}": field for name, field in Route.model_fields.items()}
SWITCHES = [name for name, field in LEAVES.items() if field.annotation is bool]
LISTS = [name for name, field in LEAVES.items() if isinstance(rule_of(field), ListOf)]
OTHERS = [name for name in LEAVES if name not in (*SWITCHES, *LISTS)]


def said_of(folder: Path, name: str, value: str) -> str:
    """What is said of ``name = value`` in a file."""
    table, _, key = name.rpartition(".")
    needed = {"intercept": '"orders.delay"', "deliver_to": '"orders"'} if table == "routes.orders" else {}
    lines = "\n".join(f"{name} = {text}" for name, text in {**needed, key: value}.items())
    file = folder / "some.toml"
    file.write_text(f"[{table}]\n{lines}\n")
    with pytest.raises(SettingsError) as caught:
        load(file, {})
    said = str(caught.value)
    assert said.startswith(f"{file}: {name} "), said
    assert "\n" not in said
    return said.removeprefix(f"{file}: {name} ")


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false_and_no_text(empty_directory: Path, name: str) -> None:
    for value in ('"yes"', '"true"', "1"):
        assert said_of(empty_directory, name, value) == f"must be true or false, without quotes (given: {value})"


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_no_text(empty_directory: Path, name: str) -> None:
    assert said_of(empty_directory, name, '"1s,5s"') == 'must be a list in brackets: ["...", "..."]'
    assert said_of(empty_directory, name, "7") == 'must be a list in brackets: ["...", "..."] (given: 7)'


@pytest.mark.parametrize("name", OTHERS)
def test_a_value_is_no_list_no_switch_and_no_date(empty_directory: Path, name: str) -> None:
    for value in ("[7]", "true", "2026-11-22", "[]"):
        said = said_of(empty_directory, name, value)
        assert said.startswith(("must be ", "needs a unit"))
        assert said.endswith(f" (given: {value})") != is_secret(LEAVES[name])


@pytest.mark.parametrize("name", [name for name, field in LEAVES.items() if not field.is_required()])
def test_a_value_is_no_table(empty_directory: Path, name: str) -> None:
    assert said_of(empty_directory, name, "{ a = 1 }") == "must be a value, not a table"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rabbitmq.prefetch", "0", "must be a whole number from 1 to 65535 (given: 0)"),
        ("rabbitmq.prefetch", '"many"', "must be a whole number from 1 to 65535"),
        ("dispatch.lease", "30", 'needs a unit, such as "30s" (given: 30)'),
        ("dispatch.lease", '"9y"', 'must be a duration with a unit, such as "500ms", "30s" or "36h" (given: "9y")'),
        ("log.level", '"warn"', 'must be one of debug, info, warning, error (given: "warn"). Did you mean "warning"?'),
        ("headers.levels", '["1s", "2"]', '(item 2) needs a unit, such as "30s" (given: ["1s", "2"])'),
        ("kafka.sasl_password", "4711", "must be text in quotes"),
        ("redis.timeout", '"geheim"', 'must be a duration with a unit, such as "500ms", "30s" or "36h"'),
    ],
)
def test_what_was_given_is_shown_unless_it_may_be_a_secret(
    empty_directory: Path, name: str, value: str, said: str
) -> None:
    assert said_of(empty_directory, name, value) == said


def test_the_environment_has_only_text_and_its_switches_and_lists_are_read_from_it() -> None:
    settings = load(None, {"POSTDATE_BRIDGE__SETUP": "no", "POSTDATE_HEADERS__LEVELS": "1s, 5s"})
    assert (settings.bridge.setup, settings.headers.levels) == (False, (1000, 5000))


def test_every_setting_is_here() -> None:
    kinds: list[type[Rule] | FieldInfo] = [type(rule) for field in LEAVES.values() if (rule := rule_of(field))]
    assert len(kinds) + len(SWITCHES) == len(LEAVES)


def in_toml(field: FieldInfo, value: Any) -> str:
    """A setting as a file has it."""
    rule = rule_of(field)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    elif isinstance(rule, ListOf):
        value = [rule.item.write(item) for item in value]
    elif rule is not None and not isinstance(rule, Whole | Number):
        value = rule.write(value)
    return json.dumps(value)


def test_the_defaults_obey_their_own_rules(empty_directory: Path) -> None:
    settings = load(None, {}, {"routes.orders.intercept": "orders.delay", "routes.orders.deliver_to": "orders"})
    file = empty_directory / "some.toml"
    file.write_text(
        "\n".join(f"{dotted(path)} = {in_toml(field, value)}" for path, field, value in leaves_of(settings))
    )
    assert load(file, {}).model_dump() == settings.model_dump()
