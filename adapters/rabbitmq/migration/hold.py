"""Runs ``hold.erl`` on a node of the broker through the operator's rabbitmqctl. Blocking."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bridge.core.errors import BrokerUnavailable, Refused, SettingsError

_SCRIPT = Path(__file__).parent / "hold.erl"
#: How long the plugin is held for the exchange to be replaced. That takes milliseconds once rabbitmqctl has answered.
_HOLD_MS = 10_000
_HELD = re.compile(r"\{held,(\d+),(\d+)\}$")
_REFUSED = re.compile(r"\{refused,(.*?)\}?$")
_SAID_MAX = 200
_REASONS = {
    "other_broker": "{tool!r} reaches another broker than rabbitmq.url",
    "unknown_plugin": "{tool!r} reaches a node whose plugin keeps messages in a way that postdate does not know",
}
_FAILED = "the plugin could not be held by {tool!r}: {why}"


class HoldAnswer(NamedTuple):
    """How many messages were moved to the exchange of those that wait, and how many wait there on all nodes."""

    moved: int
    waiting: int


def script(vhost: str, exchange: str, waiting: str, proof: str, hold_ms: int = _HOLD_MS) -> str:
    """Return the text for `rabbitmqctl eval`. Pure."""
    places = {
        "@EXCHANGE@": _resource(vhost, "exchange", exchange),
        "@WAITING@": _resource(vhost, "exchange", waiting),
        "@PROOF@": _resource(vhost, "queue", proof),
        "@WAIT_MS@": str(hold_ms),
    }
    lines = [line for line in _SCRIPT.read_text("utf-8").splitlines() if not line.lstrip().startswith("%%")]
    return re.sub("|".join(places), lambda found: places[found[0]], "\n".join(lines))


def _resource(vhost: str, kind: str, name: str) -> str:
    """Return a name in Erlang, as numbers: nothing in it can be read as code."""
    where, what = (f"<<{','.join(map(str, part.encode()))}>>" for part in (vhost, name))
    return f"{{resource,{where},{kind},{what}}}"


@contextmanager
def hold(tool: str, vhost: str, exchange: str, waiting: str, proof: str) -> Iterator[HoldAnswer]:
    """Move the waiting messages of an exchange, and hold the plugin for the block. Yield what was done.

    The block begins with the tool's answer and not with its end: rabbitmqctl takes its time to stop. The plugin goes on
    as soon as the exchange is replaced, or after ``_HOLD_MS``. ``proof`` is a queue that only this broker has.

    Raises ``SettingsError`` for a command that cannot be started, ``Refused`` where the broker has another plugin,
    ``BrokerUnavailable`` where the command failed.
    """
    command = [*shlex.split(tool), "eval", script(vhost, exchange, waiting, proof)]
    try:
        started = subprocess.Popen(  # noqa: S603 - the operator's own command, and no shell
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise SettingsError(f"--rabbitmqctl {tool!r} cannot be started: {error.strerror}.") from error
    with started as running:
        assert running.stdout is not None
        lines: list[str] = []
        for line in running.stdout:
            lines.append(line.strip())
            if _HELD.match(lines[-1]) or _REFUSED.match(lines[-1]):
                break
        yield held(tool, lines)


def held(tool: str, lines: Sequence[str]) -> HoldAnswer:
    """Return what the tool's lines say, of which the last decides. Raises as ``hold``. Pure."""
    last = lines[-1] if lines else ""
    if found := _HELD.match(last):
        return HoldAnswer(int(found[1]), int(found[2]))
    if found := _REFUSED.match(last):
        raise Refused(_REASONS.get(found[1], _FAILED).format(tool=tool, why=found[1]) + ". Nothing was replaced")
    text = " ".join(lines)[-_SAID_MAX:] or "it said nothing"
    raise BrokerUnavailable(f"{tool!r} failed: {text}. Nothing was replaced")
