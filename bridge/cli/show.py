"""``postdate show``: messages with their properties and body."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from bridge.cli.acting import operate, settings_for
from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, Output, OutputOption, RouteOption
from bridge.cli.output import as_json, facts, rows
from bridge.cli.select import targets
from bridge.core.errors import NOT_FOUND, NotFound, SettingsError
from bridge.delay.duration import write_moment
from bridge.desk.past import PastFilter
from bridge.operate.describe import whole_text
from bridge.operate.documents import MessageDetails, OpenedFacts, PastMessage, RetryFacts
from bridge.operate.operator import Operator
from bridge.telemetry.printable import complain, printable_lines

#: What is printed as text of a message that left the store, beside the moments.
_PAST_FACTS = ("id", "state", "route", "broker", "key", "size", "tries", "late_ms", "reason")
#: Entries of the history with one key that are shown.
_PAST_MAX = 50
#: Bytes on a line of a hex dump.
_HEX_WIDTH = 16


def show(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    full: Annotated[bool, typer.Option("--full", help="Show the whole body, however long.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the body, byte for byte. For one message.")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show messages with their properties, headers and body. Nothing is changed.

    Of a message that left the store, the history has the moments: received, due, claimed, published, confirmed.
    """
    settings = settings_for(config)

    async def work(operator: Operator) -> tuple[Sequence[MessageDetails | PastMessage] | bytes, str]:
        try:
            meant = await targets(operator, settings, ids, key, route)
        except NotFound:
            past = await _of_key(operator, route, key) if key is not None else []
            if not past:
                raise
            return past, ""
        found, unknown = await _details(operator, meant, full)
        if unknown and (raw or not found):
            raise NotFound(unknown)
        if not raw:
            known = ((details, details.message) for details in found)
            return [message if isinstance(message, PastMessage) else details for details, message in known], unknown
        if len(found) > 1:
            raise SettingsError(f"--raw writes one message. Messages given: {len(found)}.")
        message = found[0].message
        if isinstance(message, PastMessage):
            raise NotFound(f"The body of message {message.id} is gone: {found[0].body.hidden.partition(': ')[2]}.")
        return await operator.body(message.id), ""

    found, unknown = operate(settings, work, route)
    if isinstance(found, bytes):
        sys.stdout.buffer.write(found)
    else:
        _print(output, found)
    if unknown:
        complain(unknown)
        raise typer.Exit(NOT_FOUND)


async def _details(operator: Operator, ids: Sequence[str], whole: bool) -> tuple[list[MessageDetails], str]:
    """Return the messages: those in the store first. The text says which are not known, "" for none."""
    found: list[MessageDetails] = []
    missing: list[str] = []
    why = ""
    for message_id in dict.fromkeys(ids):
        try:
            found.append(await operator.show(message_id, whole))
        except NotFound as error:
            missing.append(message_id)
            why = str(error).partition(": ")[2].removesuffix(".")
    unknown = f"No message has id {', '.join(missing)}: {why}." if missing else ""
    return sorted(found, key=lambda details: isinstance(details.message, PastMessage)), unknown


async def _of_key(operator: Operator, route: str | None, key: str) -> list[PastMessage]:
    """Return the entries of the history with a key, the newest first."""
    found: list[PastMessage] = []
    async for entry in operator.history(PastFilter(route=route, key=os.fsencode(key))):
        found.append(entry)
        if len(found) == _PAST_MAX:
            break
    return found


def _print(output: Output, found: Sequence[MessageDetails | PastMessage]) -> None:
    if output is Output.TEXT:
        for place, details in enumerate(found):
            if place:
                print()
            if isinstance(details, PastMessage):
                _print_past(details)
            else:
                _print_text(details)
    elif len(found) == 1:
        as_json(output, _as_json(found[0]))
    else:
        rows(output, (), map(_as_json, found))


def _as_json(details: MessageDetails | PastMessage) -> dict[str, Any]:
    """Return all facts; the body as text where it is UTF-8, else in base64."""
    if isinstance(details, PastMessage):
        return details.as_dict()
    message, body = details.message, details.body
    content = {"body_base64": body.base64} if body.base64 is not None else {"body": body.text or ""}
    sizes = {"body_size": body.size, "body_truncated": len(body.raw) < (body.size or 0)}
    return {**message.as_dict(), "properties": _every(details).properties, **sizes, **content}


def _every(details: MessageDetails) -> OpenedFacts:
    """Return the properties in their order; for a caller who does not see all, those that the API shows."""
    if details.opened is not None:
        return details.opened
    properties = {**(details.properties or {}), "headers": details.headers}
    hidden = {"body hidden": details.body.hidden} if details.body.hidden else {}
    return OpenedFacts(properties=properties, other={**properties, **hidden})


def _print_text(details: MessageDetails) -> None:
    known = details.message.as_dict()
    if details.message.retry is not None:
        known["retry"] = _retry_text(details.message.retry)
    for name in ("due_ms", "size", "arrived_ms", "broker"):
        known.pop(name, None)
    known["held"] = known.get("held") or None
    known["delay key"] = known.pop("key")
    known.update(details.origin)
    pairs = [(name.replace("_", " "), _value(value)) for name, value in known.items() if value is not None]
    facts(Output.TEXT, {}, [*pairs, *_properties(_every(details).other)])
    body = details.body.raw
    print(f"\nbody ({details.body.size} bytes)")
    for text in body_lines(body, len(body) < (details.body.size or 0)):
        print(text)


def _print_past(entry: PastMessage) -> None:
    """Print an entry of the history, with a line for each moment."""
    view = entry.as_dict()
    pairs = [(name.replace("_", " "), str(view[name])) for name in _PAST_FACTS if view[name] is not None]
    facts(Output.TEXT, {}, pairs + [(event.what, write_moment(event.at_ms)) for event in entry.life])


def _retry_text(retry: RetryFacts) -> str:
    """Return the attempt for which a message waits, and how its consumers failed."""
    which = f"attempt {retry.attempt} of {retry.attempts}"
    if retry.attempt > retry.attempts:
        which = f"no attempt left of {retry.attempts}"
    why = f"last reason {retry.reason}, " if retry.reason else ""
    return f"{which} ({why}first failed {retry.first_failed}, id {retry.id})"


def _properties(properties: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return a line for each property and each header."""
    pairs: list[tuple[str, str]] = []
    for name, value in properties.items():
        if name == "headers" and isinstance(value, dict):
            pairs += [(f"header {header}", _value(inner)) for header, inner in value.items()]
        else:
            pairs.append((name.replace("_", " "), _value(value)))
    return pairs


def _value(value: object) -> str:
    """Return text as it is and other values as JSON, which tells 5 from "5" and true from "true"."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def body_lines(body: bytes, truncated: bool) -> Iterator[str]:
    """Yield the lines to print: text where the body is printable text, else a hex dump."""
    text = whole_text(body, truncated)
    if text is not None and all(letter.isprintable() or letter in "\n\r\t" for letter in text):
        yield from printable_lines(text.replace("\r\n", "\n")).split("\n")
    else:
        yield from hex_lines(body)
    if truncated:
        yield f"... cut after {len(body)} bytes. --full shows all of it, --raw writes the bytes."


def hex_lines(body: bytes) -> Iterator[str]:
    """Yield lines with the offset, the bytes, and the printable letters among them."""
    for at in range(0, len(body), _HEX_WIDTH):
        piece = body[at : at + _HEX_WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"{at:08x}  {piece.hex(' '):<{_HEX_WIDTH * 3 - 1}}  {letters}"
