"""Logs: one line an event on standard error; text for people, JSON for machines. No bodies, no credentials."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from bridge.printable import printable
from bridge.settings import Log

_Event = MutableMapping[str, Any]

#: pika reports every lost connection with a traceback, and aiokafka each retry of each request; postdate says the same
#: in a sentence of its own.
_QUIET = {
    "pika": logging.CRITICAL,
    "aiokafka": logging.CRITICAL,
    "redis": logging.WARNING,
    "asyncio": logging.WARNING,
}


def set_up(settings: Log, name: str = "", stream: TextIO = sys.stderr) -> None:
    """Send everything that is logged, by postdate and by its libraries, to ``stream``.

    ``name`` stands in every line, to tell processes apart; "" is left out.
    """
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    chain: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _named(name),
    ]
    last = _last(settings.format, stream)
    structlog.configure(
        processors=[*chain, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
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


def _last(form: str, stream: TextIO) -> list[Processor]:
    """How an event becomes a line."""
    if form == "json" or (form == "auto" and not stream.isatty()):
        # ASCII only, so that no reader of the log can be fooled by what stands in it.
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=True, default=str)]
    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    # Not structlog's own choice of traceback: with rich it would print the local variables, passwords among them.
    plain = structlog.dev.plain_traceback
    return [_escaped, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]


def _named(name: str) -> Callable[[Any, str, _Event], _Event]:
    def add(_logger: Any, _method: str, event: _Event) -> _Event:
        if name:
            event["instance"] = name
        return event

    return add


def _escaped(_logger: Any, _method: str, event: _Event) -> _Event:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = printable(value)
    return event
