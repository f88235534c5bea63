"""``postdate show``: one message with its properties and body."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, Output, OutputOption, RouteOption

if TYPE_CHECKING:
    from bridge.admin.desk import Desk, Row

#: Bytes of a body that are shown, and of a payload that are read for it: routing key, properties (a frame), body.
BODY_BYTES = 4096
_READ_BYTES = 260 + 256 * 1024 + BODY_BYTES


def show(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    full: Annotated[bool, typer.Option("--full", help="The whole body, however long.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Only the body, as the bytes it is; for one message.")] = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show messages: facts, properties, headers and body. Reading changes nothing."""
    from bridge.app.open_desk import at_desk, open_payload
    from bridge.app.wiring import settings_from
    from bridge.cli.select import targets
    from bridge.core.errors import NotFound, SettingsError

    settings = settings_from(config)

    async def work(desk: Desk) -> list[Row]:
        meant = await targets(desk, settings, ids, key, route)
        rows = await desk.look(meant, -1 if full or raw else _READ_BYTES)
        for place, row in enumerate(rows):
            try:
                open_payload(row)
            except ValueError:  # properties of more than a frame: then everything is read
                rows[place : place + 1] = await desk.look([row.id], -1)
        missing = set(meant) - {row.id for row in rows}
        if missing:
            names = ", ".join(sorted(one.decode() for one in missing))
            raise NotFound(f"There is no message {names} (any more).")
        return rows

    rows = at_desk(settings, work, route)
    if raw:
        if len(rows) > 1:
            raise SettingsError(f"--raw is for one message, and these are {len(rows)}.")
        sys.stdout.buffer.write(open_payload(rows[0]).body)
        return
    _print(output, rows, None if full else BODY_BYTES)


def _print(output: Output, rows: list[Row], most: int | None) -> None:
    from bridge.cli.output import document, line

    if output is Output.TEXT:
        for place, row in enumerate(rows):
            if place:
                print()
            _print_text(row, most)
        return
    found = [_as_json(row, most) for row in rows]
    if output is Output.JSONL:
        for one in found:
            line(one)
    else:
        document(found[0] if len(found) == 1 else found)


def _as_json(row: Row, most: int | None) -> dict[str, Any]:
    """Everything; the body as text where it is UTF-8, else in base64."""
    from base64 import b64encode

    from bridge.app.open_desk import open_payload
    from bridge.cli.bodies import whole_text
    from bridge.cli.messages import as_dict

    opened = open_payload(row)
    body = opened.body[:most]
    truncated = len(body) < opened.body_size
    text = whole_text(body, truncated)
    shown = {"body": text} if text is not None else {"body_base64": b64encode(body).decode()}
    sizes = {"body_size": opened.body_size, "body_truncated": truncated}
    return {**as_dict(row), "properties": opened.properties, **sizes, **shown}


def _print_text(row: Row, most: int | None) -> None:
    from bridge.app.open_desk import open_payload
    from bridge.cli.bodies import body_lines
    from bridge.cli.messages import as_dict
    from bridge.cli.output import facts

    opened = open_payload(row)
    known = as_dict(row)
    del known["due_ms"], known["size"]
    known["delay key"] = known.pop("key")
    known.update(opened.origin)
    pairs = [(name.replace("_", " "), _value(value)) for name, value in known.items() if value is not None]
    facts(Output.TEXT, {}, [*pairs, *_properties(opened.other)])
    body = opened.body[:most]
    print(f"\nbody ({opened.body_size} bytes)")
    for one in body_lines(body, len(body) < opened.body_size):
        print(one)


def _properties(properties: Any) -> list[tuple[str, str]]:
    """A line for each property and each header."""
    pairs: list[tuple[str, str]] = []
    for name, value in properties.items():
        if name == "headers" and isinstance(value, dict):
            pairs += [(f"header {header}", _value(inner)) for header, inner in value.items()]
        else:
            pairs.append((name.replace("_", " "), _value(value)))
    return pairs


def _value(value: object) -> str:
    """Text as it is, everything else as JSON, which tells 5 from "5" and true from "true" in tables."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
