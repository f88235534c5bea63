"""What a line of the log looks like: for people no Python, for machines JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bridge.settings import Log
from bridge.telemetry import logs


@pytest.fixture(autouse=True)
def _left_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


def written(form: str, **facts: object) -> str:
    """The line of one event."""
    stream = io.StringIO()
    logs.set_up(Log.model_validate({"format": form}), stream=stream)
    structlog.get_logger("postdate").warning("trouble", **facts)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("word", "word"),
        ("two words", '"two words"'),
        ('it\'s "so"', '"it\'s "so""'),
        ("first\n  - second\nthird", '"first; - second; third"'),
        ("\x1b[2J\u202e", "\\x1b[2J\\u202e"),
        (["a", "b"], '"a, b"'),
        ((1, 2), '"1, 2"'),
        ({"p50": 1.5}, '"p50 1.5"'),
        (True, "yes"),
        (None, "none"),
        ("", '""'),
        (5, "5"),
    ],
)
def test_a_value_is_written_for_people_and_not_as_python_writes_it(value: object, shown: str) -> None:
    line = written("text", what=value)
    assert line.endswith(f" what={shown}\n")
    assert line.count("\n") == 1
    assert "[warning  ] trouble  " in line


def test_json_has_the_value_as_it_is() -> None:
    given = {"what": "first\n\x1b", "ids": ["a"], "none": None}
    found = json.loads(written("json", **given))
    assert {name: found[name] for name in given} == given


def test_a_traceback_keeps_its_lines_and_shows_no_variables() -> None:
    stream = io.StringIO()
    logs.set_up(Log.model_validate({"format": "text"}), stream=stream)
    password = "hunter" + "2"
    try:
        raise ValueError(f"{len(password)} letters")
    except ValueError:
        structlog.get_logger("postdate").exception("died")
    text = stream.getvalue()
    assert "Traceback (most recent call last):\n" in text
    assert "ValueError: 7 letters" in text
    assert "hunter2" not in text


def test_lines_of_libraries_have_the_same_form() -> None:
    stream = io.StringIO()
    logs.set_up(Log.model_validate({"format": "text"}), stream=stream)
    logging.getLogger("some.library").warning("two\nlines")
    assert "two; lines" in stream.getvalue()
    assert "some.library" in stream.getvalue()
