"""``postdate send``: park a message without a broker."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from bridge.cli.acting import operate, settings_for
from bridge.cli.options import AtOption, ConfigOption, InOption, Output, OutputOption
from bridge.cli.output import facts
from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.desk.payload import Draft
from bridge.operate.moments import read_due
from bridge.operate.remote import api_address
from bridge.settings import require_routes
from bridge.telemetry.printable import say


def send(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="Name of a route in the settings.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="Message body. '' is empty, - reads standard input.")],
    routing_key: Annotated[
        str | None,
        typer.Option("--routing-key", metavar="TEXT", help="RabbitMQ, required: routing key. '' is an empty one."),
    ] = None,
    record_key: Annotated[
        str | None, typer.Option("--record-key", metavar="TEXT", help="Kafka: record key. Default: none.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Kafka: intake topic of the record. Required if the route has several."
        ),
    ] = None,
    after: InOption = None,
    at: AtOption = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=TEXT", help="Header to set. Repeatable.")
    ] = None,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Key to cancel or reschedule the message by.")] = "",
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="RabbitMQ: content type.")
    ] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", metavar="ID", help="RabbitMQ: message id.")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Park a message in the store, without a broker. A running postdate delivers it when it is due.

    Give either --in or --at. Prints the id of the message.
    """
    read = read_due(after, at)
    settings = settings_for(config)
    content = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    draft = Draft(content, _headers(header or []), routing_key, record_key, topic, content_type, message_id)
    if api_address() is None:
        require_routes(settings)
    scheduled, _ = operate(settings, lambda operator: operator.send(route, draft, key, read))
    found = {"id": scheduled.id, "state": State.PARKED.value, "due": scheduled.due, "due_ms": scheduled.due_ms}
    facts(output, found, [("id", scheduled.id), ("due", scheduled.due)])
    say(f"To cancel it: postdate cancel {scheduled.id}")


def _headers(texts: list[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise SettingsError(f"--header {text!r} is not of the form NAME=TEXT.")
        if name in headers:
            raise SettingsError(f"--header names {name!r} twice. postdate sends each header once.")
        headers[name] = value
    return headers
