"""Where the producers that name the real topic send a record, and that their files stand alone."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from logging import LogRecord
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adapters.kafka.producers import delay_aiokafka, delay_confluent
from bridge.delay.header import DUE_HEADERS
from bridge.delay.trust import DESTINATION

BOTH = pytest.mark.parametrize("module", [delay_aiokafka, delay_confluent])


@BOTH
@pytest.mark.parametrize(
    ("intake", "topic", "expected"),
    [
        ("*.delay", "orders", "orders.delay"),
        ("*.delay", "orders.delay", None),
        ("later.*.in", "orders", "later.orders.in"),
        ("later.*.in", "later.orders.in", None),
        ("later.*", "later", "later.later"),
        ({"orders": "wait"}, "orders", "wait"),
        ({"orders": "wait"}, "payments", None),
        ({"orders": "wait"}, "wait", None),
    ],
)
def test_a_rule_or_a_mapping_names_the_intake_topic(
    module: ModuleType, intake: str | dict[str, str], topic: str, expected: str | None
) -> None:
    assert module._rule(intake)(topic) == expected


@BOTH
@pytest.mark.parametrize("intake", ["", "*", "**", "*.*", "delay"])
def test_a_rule_without_exactly_one_star_and_other_characters_is_refused(module: ModuleType, intake: str) -> None:
    with pytest.raises(ValueError, match='one "\\*" and other characters'):
        module.DelayProducer(intake=intake)


@BOTH
@pytest.mark.parametrize("names", ["x-delay", []])
def test_delay_headers_must_be_a_list_of_names(module: ModuleType, names: str | list[str]) -> None:
    with pytest.raises(ValueError, match="delay_headers must be a list of names, not "):
        module.DelayProducer(delay_headers=names)


@BOTH
def test_the_producers_delay_headers_are_those_that_the_intake_obeys(module: ModuleType) -> None:
    assert set(module.DELAY_HEADERS) == DUE_HEADERS | {DESTINATION}


@BOTH
def test_a_topic_missing_in_the_mapping_is_warned_of_once(module: ModuleType, logged: list[LogRecord]) -> None:
    intake_of = module._rule({"orders": "wait"})
    for topic in ("orders", "payments", "wait", "payments", "refunds", "payments"):
        intake_of(topic)
    assert [(record.levelname, record.name) for record in logged] == [("WARNING", module.__name__)] * 2
    messages = [record.getMessage() for record in logged]
    assert [topic in messages[at] for at, topic in enumerate(("payments", "refunds"))] == [True, True]
    assert "not delayed" in messages[0]


@BOTH
def test_a_rule_covers_every_topic_and_never_warns(module: ModuleType, logged: list[LogRecord]) -> None:
    intake_of = module._rule("*.delay")
    for topic in ("orders", "orders.delay"):
        intake_of(topic)
    assert logged == []


@BOTH
@pytest.mark.slow
def test_a_copy_of_the_file_needs_only_its_library(module: ModuleType, tmp_path: Path) -> None:
    file = Path(str(module.__file__))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "")]
        )
        if name
    }
    assert imported - set(sys.stdlib_module_names) in ({"aiokafka"}, {"confluent_kafka"})
    shutil.copy(file, tmp_path)
    alone = [sys.executable, "-c", f"import {file.stem}; {file.stem}.DelayProducer"]
    assert subprocess.run(alone, cwd=tmp_path, env={}, check=False).returncode == 0


@pytest.mark.parametrize("headers", [{b"x-delay": b"1000"}, [("a", b"1"), (b"x-delay", b"1000")]])
def test_a_delay_header_whose_name_confluent_kafka_would_mangle_is_refused(headers: Any) -> None:
    with pytest.raises(TypeError, match="b'x-delay' would not delay the record"):
        delay_confluent.DelayProducer({}).produce("orders", b"value", headers=headers)
