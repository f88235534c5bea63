"""Logs: one line for each event on standard error, as text or JSON, without bodies and credentials."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog
from structlog import dev
from structlog.typing import Processor

from bridge.settings import Log
from bridge.telemetry.printable import printable

_Event = MutableMapping[str, Any]
_EVENT_WIDTH = 30
_PROCESSORS: list[Processor] = []

#: pika logs a traceback for every lost connection, and aiokafka a line for every retry; postdate logs one sentence.
_QUIET = {
    "pika": logging.CRITICAL,
    "aiokafka": logging.CRITICAL,
    "redis": logging.WARNING,
    "asyncio": logging.WARNING,
    "httpx": logging.WARNING,  # it logs URLs, and a webhook's URL is a secret
    "httpcore": logging.WARNING,
    "uvicorn": logging.ERROR,  # it has a line for every request that is no HTTP
}


def set_up(settings: Log, name: str = "", stream: TextIO = sys.stderr) -> None:
    """Send the logs of postdate and of its libraries to ``stream``. Every line carries ``name``, unless it is ""."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    chain: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _named(name),
    ]
    last = _last(settings.format, stream)
    # A second call changes the list in place: loggers that were used keep it.
    first, *others = chain
    _PROCESSORS[:] = [first, _not_below(level), *others, *last]
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*chain, structlog.stdlib.add_logger_name], processors=[remove, *last]
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(True)
    for library, quiet in _QUIET.items():
        logging.getLogger(library).setLevel(max(level, quiet))


def _not_below(level: int) -> Processor:
    def drop(_logger: Any, _method: str, event: _Event) -> _Event:
        if logging.getLevelNamesMapping()[event["level"].upper()] < level:
            raise structlog.DropEvent
        return event

    return drop


def _last(form: str, stream: TextIO) -> list[Processor]:
    """Return the processors that make a line of an event."""
    if form == "json" or (form == "auto" and not stream.isatty()):
        # ASCII only, so that no value can forge log lines or confuse a terminal.
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=True, default=str)]
    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    # Not structlog's own choice of traceback: with rich it would print the local variables, passwords among them.
    plain = dev.plain_traceback
    return [_for_people, dev.ConsoleRenderer(columns=_columns(colours), exception_formatter=plain)]


def _named(name: str) -> Callable[[Any, str, _Event], _Event]:
    def add(_logger: Any, _method: str, event: _Event) -> _Event:
        if name:
            event["instance"] = name
        return event

    return add


def _columns(colours: bool) -> list[dev.Column]:
    """Return structlog's columns with values as plain text, where structlog writes Python literals."""
    styles = dev.ConsoleRenderer.get_default_column_styles(colours)
    levels = dev.ConsoleRenderer.get_default_level_styles(colours)

    def plain(style: str, width: int = 0) -> dev.KeyValueColumnFormatter:
        return dev.KeyValueColumnFormatter(None, style, styles.reset, str, width)

    named = dev.KeyValueColumnFormatter(styles.kv_key, styles.kv_value, styles.reset, _quoted)
    return [
        dev.Column("timestamp", plain(styles.timestamp)),
        dev.Column("level", dev.LogLevelColumnFormatter(levels, styles.reset)),
        dev.Column("event", plain(styles.bright, _EVENT_WIDTH)),
        dev.Column("logger", plain(styles.logger_name)),
        dev.Column("", named),
    ]


def _for_people(_logger: Any, _method: str, event: _Event) -> _Event:
    """Write values as printable text on one line. A traceback keeps its lines."""
    for key, value in event.items():
        if key != "exc_info":
            event[key] = _written(value)
    return event


def _written(value: object) -> str:
    match value:
        case str():
            return printable("; ".join(line.strip() for line in value.splitlines() if line.strip()))
        case bool() | None:
            return {True: "yes", False: "no", None: "none"}[value]
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(_written, value))
        case dict():
            return ", ".join(f"{_written(name)} {_written(item)}" for name, item in value.items())
    return printable(str(value))


def _quoted(value: object) -> str:
    """Quote a value with blanks, so that its end is visible."""
    text = str(value)
    return text if text and not set(text) & set(' ="') else f'"{text}"'
