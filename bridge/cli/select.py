"""Which messages a command acts on: those with these ids, with a key, or all dead letters that match a filter."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import typer

from bridge.cli.acting import operate
from bridge.cli.options import Output
from bridge.cli.output import confirm, facts
from bridge.cli.output import rows as print_rows
from bridge.core.errors import FINE, NOT_FOUND, REFUSED, SettingsError
from bridge.core.state import State
from bridge.desk.rows import Filter
from bridge.operate.documents import MessageFacts, VerbResult
from bridge.operate.find import Criteria
from bridge.operate.operator import Due, Operator
from bridge.operate.remote import api_address
from bridge.operate.select import no_store, read_ids, unknown_route
from bridge.operate.verbs import Verb
from bridge.settings import Settings
from bridge.telemetry.printable import complain, say

#: States in text output; JSON has the words of the store.
_IN_WORDS: Mapping[str, str] = MappingProxyType({"claimed": "being sent", "gone": "sent", "none": "not found"})
_SAMPLE = 5


async def targets(
    operator: Operator, settings: Settings, ids: Sequence[str] | None, key: str | None, route: str | None
) -> list[str]:
    """Return the ids of the messages named by ids or by key.

    Raises ``SettingsError``, ``NotFound``, and ``Refused`` for a key that too many messages have.
    """
    if bool(ids) == (key is not None):
        raise SettingsError("Give ids, or --key with --route.")
    if key is None:
        return [message_id.decode() for message_id in read_ids(ids or [])]
    if route is None:
        names = await _configured(operator, settings)
        if len(names) != 1:
            raise SettingsError(f"--key needs --route. Configured routes: {', '.join(names) or 'none'}.")
        route = names[0]
    return await operator.ids_of_key(os.fsencode(key), route)


async def _configured(operator: Operator, settings: Settings) -> list[str]:
    """Return the configured routes: of the API where it is named, which may have other settings."""
    return list(settings.routes) if api_address() is None else [route.name for route in await operator.routes()]


def not_configured(settings: Settings, route: str | None) -> str:
    """Return the sentences about a route that is not configured; "" for one that is, or for None."""
    if route is None:
        return ""
    names = operate(settings, lambda operator: _configured(operator, settings))
    return "" if route in names else unknown_route(names, route)


def judge_strange_route(settings: Settings, route: str | None) -> None:
    """Explain why nothing was found. Raises ``SettingsError`` for a route that is not configured."""
    if text := not_configured(settings, route):
        raise SettingsError(text)
    if api_address() is None and (text := no_store(settings, route)):
        complain(f"Warning: {text[0].upper()}{text[1:]}.")


def at_messages(
    verb: Verb,
    settings: Settings,
    ids: Sequence[str] | None,
    key: str | None,
    route: str | None,
    reason: str,
    output: Output,
    due: Due | None = None,
) -> None:
    """Act on the messages named by ids or by key, and print what became of each."""

    async def work(operator: Operator) -> Sequence[VerbResult]:
        return await operator.act(verb, await targets(operator, settings, ids, key, route), due, reason)

    _answer(output, operate(settings, work, route), verb.done if verb.becomes is State.GONE else "sent")


def _answer(output: Output, results: Sequence[VerbResult], gone: str) -> None:
    """Print the results, refusals and remarks, and exit with the worst code: refused before not found.

    ``gone`` is how text output calls a message that has left the store.
    """
    found = [result.as_dict() for result in results]
    words = {**_IN_WORDS, "gone": gone}
    text = [{**row, "state": words.get(str(row["state"]), row["state"])} for row in found]
    print_rows(output, ["id", "state", "due"], text if output is Output.TEXT else found)
    for result in results:
        if result.text:
            complain(f"{result.id}: {result.text}.")
    codes = {result.code for result in results}
    code = next((code for code in (REFUSED, NOT_FOUND) if code in codes), FINE)
    if code:
        raise typer.Exit(code)


def at_dead_letters(verb: Verb, settings: Settings, wanted: Filter, reason: str, yes: bool, output: Output) -> None:
    """Ask for confirmation, act on all dead letters that match, and print on how many.

    ``reason`` goes to the audit log.
    """
    done = operate(settings, lambda operator: _on_dead_letters(operator, verb, wanted, reason, yes), wanted.route)
    facts(output, {verb.done: done}, [(verb.done, str(done))])
    if not done:
        judge_strange_route(settings, wanted.route)


async def _on_dead_letters(operator: Operator, verb: Verb, wanted: Filter, reason: str, yes: bool) -> int:
    """Return how many dead letters were acted on.

    All ids are read first: a message that dies again meanwhile is not taken a second time. Raises ``SettingsError``
    where there is no terminal to ask on, ``typer.Exit`` where the answer is no.
    """
    sample: list[MessageFacts] = []
    ids: list[str] = []
    async for message in operator.messages(State.DEAD, Criteria(wanted)):
        if verb.spares(message.state, message.reason or ""):
            continue
        ids.append(message.id)
        if len(sample) < _SAMPLE:
            sample.append(message)
    if not ids:
        return 0
    if not yes:
        lines = [f"  {message.id}  {message.route}  {message.reason or ''}" for message in sample]
        more = [f"  ... and {len(ids) - len(sample)} more"] if len(ids) > len(sample) else []
        confirm(verb.name, "dead letters", len(ids), [*lines, *more])

    def report(acted: int) -> None:
        if acted < len(ids) and sys.stderr.isatty():
            say(f"{acted} of {len(ids)} ...")

    filters = {"route": wanted.route, "reason": wanted.reason}
    text = " ".join(f"{name}={value}" for name, value in filters.items() if value is not None)
    results = await operator.act(verb, ids, reason=reason, what=f"dead letters {text}".rstrip(), progress=report)
    return sum(result.code == FINE for result in results)
