"""Which messages a command acts on, by ids or by key, and why a filter finds none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import typer

from bridge.cli.acting import operate
from bridge.cli.options import Output
from bridge.cli.output import rows as print_rows
from bridge.core.errors import FINE, NOT_FOUND, REFUSED, SettingsError
from bridge.operate.documents import VerbResult
from bridge.operate.operator import Due, Operator
from bridge.operate.remote import api_address
from bridge.operate.select import no_store, read_ids, unknown_route
from bridge.operate.verbs import Verb
from bridge.settings import Settings
from bridge.telemetry.printable import complain

#: States in text output; JSON has the words of the store.
_IN_WORDS: Mapping[str, str] = MappingProxyType({"claimed": "being sent", "gone": "sent", "none": "not found"})


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


def explain_nothing(settings: Settings, route: str | None) -> None:
    """Explain why nothing was found. Raises ``SettingsError`` for a route that is not configured."""
    if route is not None:
        names = operate(settings, lambda operator: _configured(operator, settings))
        if route not in names:
            raise SettingsError(unknown_route(names, route))
    if api_address() is None and (text := no_store(settings, route)):
        complain(f"Warning: {text[0].upper()}{text[1:]}.")


def at_messages(
    verb: Verb,
    settings: Settings,
    ids: Sequence[str] | None,
    key: str | None,
    route: str | None,
    note: str,
    output: Output,
    due: Due | None = None,
) -> None:
    """Act on the messages named by ids or by key, and print what became of each."""

    async def work(operator: Operator) -> Sequence[VerbResult]:
        return await operator.act(verb, await targets(operator, settings, ids, key, route), due, note)

    _answer(output, operate(settings, work, route))


def _answer(output: Output, results: Sequence[VerbResult]) -> None:
    """Print the results, refusals and remarks, and exit with the worst code: refused before not found."""
    found = [result.as_dict() for result in results]
    text = [{**row, "state": _IN_WORDS.get(str(row["state"]), row["state"])} for row in found]
    print_rows(output, ["id", "state", "due"], text if output is Output.TEXT else found)
    for result in results:
        if result.text:
            complain(f"{result.id}: {result.text}.")
    codes = {result.code for result in results}
    code = next((code for code in (REFUSED, NOT_FOUND) if code in codes), FINE)
    if code:
        raise typer.Exit(code)
