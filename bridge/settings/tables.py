"""Settings that come as tables: the TOML file, and what the command line sets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from bridge.settings.environment import CONFIG
from bridge.settings.layers import Layer
from bridge.settings.mistakes import Mistake, Place
from bridge.settings.names import dotted

FLAG = "flag"
DEFAULT_FILE = "postdate.toml"
_WHERE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def find_file(path: FilePath | None, environ: Mapping[str, str]) -> FilePath | None:
    """The file to read: the one named by the flag, by POSTDATE_CONFIG, or ./postdate.toml where there is one.

    A file that was named is returned whether it exists or not: to read on without it would be to run on defaults.
    """
    if path is not None:
        return path
    if environ.get(CONFIG):
        return FilePath(environ[CONFIG])
    default = FilePath(DEFAULT_FILE)
    return default if default.exists() else None


def read_file(file: FilePath | None) -> Layer:
    """Read the TOML file; without one, a layer without values."""
    layer = Layer(str(file) if file else "no file")
    if file is None:
        return layer
    try:
        # utf-8-sig: Windows editors put a byte order mark in front, which tomllib does not take.
        text = file.read_bytes().decode("utf-8-sig")
        layer.put_table(tomllib.loads(text), lambda path: Place(str(file), dotted(path)), typed=True)
    except OSError as error:
        layer.mistakes.append(Mistake(Place(str(file), "this file"), f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        layer.mistakes.append(Mistake(Place(str(file), f"line {line}"), "is not UTF-8 text"))
    except (ValueError, RecursionError) as error:
        layer.mistakes.append(_broken(str(file), text, str(error)))
    return layer


def read_overrides(overrides: Mapping[str, object]) -> Layer:
    """Take what flags set: names with dots ("redis.url"), or tables; None means that the flag was not given."""
    layer = Layer(FLAG)
    for name, value in overrides.items():
        if value is None:
            continue
        data: Any = value
        for one in reversed(name.split(".")):
            data = {one: data}
        layer.put_table(data, lambda path: Place("command line", dotted(path)))
    return layer


def _broken(file: str, text: str, reason: str) -> Mistake:
    """tomllib's finding with file, line and column; what it found there is not quoted, it may be a password."""
    found = _WHERE.search(reason)
    if found and found["line"]:
        line, column = int(found["line"]), int(found["column"])
    else:
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    what = reason[: found.start()] if found else "Too deep or too large"
    if twice := re.fullmatch(r"Cannot declare (\(.*\)) twice", what):
        name = ".".join(re.findall(r"'([^']*)'", twice[1]))
        return Mistake(
            Place(file, f"line {line}, column {column}"), f"is not TOML: the table [{name}] stands there twice"
        )
    return Mistake(Place(file, f"line {line}, column {column}"), f"is not TOML: {what[:1].lower()}{what[1:]}")
