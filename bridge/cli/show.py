"""``postdate show``: messages with their properties and body."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from bridge.admin.desk import Desk, Row
from bridge.admin.where import ended, ends, entries_of_key, history_view, not_seen
from bridge.app import views
from bridge.app.open_desk import at_desk
from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, Output, OutputOption, RouteOption
from bridge.cli.output import document, facts, line
from bridge.cli.past import print_ended
from bridge.cli.select import targets
from bridge.core.errors import NotFound, SettingsError
from bridge.parking.history import HistoryRow
from bridge.settings import settings_from
from bridge.telemetry.printable import printable_lines

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
    settings = settings_from(config)

    async def work(desk: Desk) -> tuple[list[Row], list[HistoryRow]]:
        try:
            meant = await targets(desk, settings, ids, key, route)
        except NotFound:
            past = await entries_of_key(desk, route, os.fsencode(key)) if key is not None else []
            if not past:
                raise
            return [], past
        rows = await desk.look(meant, -1 if full or raw else views.SHOWN_BYTES)
        for place, row in enumerate(rows):
            try:
                views.open_payload(row)
            except ValueError:  # properties larger than a frame: read all of it
                rows[place : place + 1] = await desk.look([row.id], -1)
        missing = sorted(set(meant) - {row.id for row in rows})
        known = await ends(desk, missing) if missing else {}
        if len(known) < len(missing):
            names = ", ".join(one.decode() for one in missing if one not in known)
            raise NotFound(f"No message has id {names}: {await not_seen(desk)}.")
        return rows, list(known.values())

    rows, past = at_desk(settings, work, route)
    if raw:
        if len(rows) + len(past) > 1:
            raise SettingsError(f"--raw writes one message. Messages given: {len(rows) + len(past)}.")
        if past:
            raise NotFound(f"The body of message {past[0].id.decode()} is gone: {ended(past[0])}.")
        sys.stdout.buffer.write(views.open_payload(rows[0]).body)
        return
    retries = [views.retry(settings, row) for row in rows]
    _print(output, list(zip(rows, retries, strict=True)), past, None if full else views.BODY_BYTES)


def _print(output: Output, rows: list[tuple[Row, Mapping[str, Any]]], past: list[HistoryRow], most: int | None) -> None:
    if output is Output.TEXT:
        for place, (row, retry) in enumerate(rows):
            if place:
                print()
            _print_text(row, retry, most)
        if rows and past:
            print()
        print_ended(past)
        return
    found = [*(_as_json(row, retry, most) for row, retry in rows), *map(history_view, past)]
    if output is Output.JSONL:
        for one in found:
            line(one)
    else:
        document(found[0] if len(found) == 1 else found)


def _as_json(row: Row, retry: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    """Return all facts; the body as text where it is UTF-8, else in base64."""
    opened = views.open_payload(row)
    body = opened.body[:most]
    truncated = len(body) < opened.body_size
    text = views.whole_text(body, truncated)
    shown = {"body": text} if text is not None else {"body_base64": b64encode(body).decode()}
    sizes = {"body_size": opened.body_size, "body_truncated": truncated}
    return {**views.message(row), **retry, "properties": opened.properties, **sizes, **shown}


def _print_text(row: Row, retry: Mapping[str, Any], most: int | None) -> None:
    opened = views.open_payload(row)
    known = {**views.message(row), **retry}
    if "retry" in known:
        known["retry"] = _retry_text(known["retry"])
    del known["due_ms"], known["size"], known["arrived_ms"], known["broker"]
    known["held"] = known["held"] or None
    known["delay key"] = known.pop("key")
    known.update(opened.origin)
    pairs = [(name.replace("_", " "), _value(value)) for name, value in known.items() if value is not None]
    facts(Output.TEXT, {}, [*pairs, *_properties(opened.other)])
    body = opened.body[:most]
    print(f"\nbody ({opened.body_size} bytes)")
    for one in body_lines(body, len(body) < opened.body_size):
        print(one)


def _retry_text(retry: Mapping[str, Any]) -> str:
    """Return the attempt for which a message waits, and how its consumers failed."""
    why = f"last reason {retry['reason']}, " if retry["reason"] else ""
    return f"attempt {retry['attempt']} of {retry['attempts']} ({why}first failed {retry['first_failed']})"


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
    text = views.whole_text(body, truncated)
    if text is not None and all(one.isprintable() or one in "\n\r\t" for one in text):
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
