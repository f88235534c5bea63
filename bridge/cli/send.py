"""``postdate send``: parks a message without a broker."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.core.errors import SettingsError
from bridge.delay.header import OWN_HEADERS

if TYPE_CHECKING:
    from bridge.admin.send import Message
    from bridge.settings import Route, Settings

_INSTEAD = {"x-delay-key": "--key", "x-delay-cancel": "`postdate cancel`"}


def send(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help="The route, as it is called in the settings.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="The body; '' is an empty one, - reads standard input.")],
    routing_key: Annotated[
        str | None,
        typer.Option("--routing-key", metavar="TEXT", help="RabbitMQ, required: the routing key; '' is an empty one."),
    ] = None,
    record_key: Annotated[
        str | None, typer.Option("--record-key", metavar="TEXT", help="Kafka: the record's key; without, it has none.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Kafka: as if on this intake topic of the route.")
    ] = None,
    after: Annotated[str | None, typer.Option("--in", metavar="DURATION", help="So long from now: 5m, 1h 30m.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="MOMENT", help="RFC 3339 with an offset, or Unix ms.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=TEXT", help="A header; as often as needed.")
    ] = None,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="To cancel and reschedule it by.")] = "",
    content_type: Annotated[str | None, typer.Option("--content-type", metavar="TYPE", help="RabbitMQ.")] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", metavar="ID", help="RabbitMQ.")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Park a message, past the broker. It is delivered by a running postdate; the answer is its id."""
    from bridge.admin.payload import Draft
    from bridge.admin.send import Message
    from bridge.app.brokers import broker_of
    from bridge.app.open_desk import park_message
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.moments import due_ms, read_due
    from bridge.settings.plan import store_of

    wait_ms, at_ms = read_due(after, at)
    settings = settings_with_routes(config)
    found = _route(settings, route)
    content = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    draft = Draft(content, _headers(header or []), routing_key, record_key, topic, content_type, message_id)
    order_key, payload = broker_of(found.broker).pack(settings, route, draft)
    if len(payload) > settings.limits.max_body:
        raise SettingsError(f"It has {len(payload)} bytes and limits.max_body is {settings.limits.max_body}.")

    def make(now_ms: int) -> Message:
        due = due_ms(wait_ms, at_ms, now_ms, settings.limits.max_delay)
        return Message(
            route=route,
            order=found.order,
            on_same_key=settings.on_same_key_of(route),
            order_key=order_key,
            payload=payload,
            due_ms=max(due, now_ms),
            key=_key(key),
        )

    one, message = park_message(store_of(settings, found.broker).settings, make)
    _tell(output, one.decode(), message.due_ms)


def _tell(output: Output, one: str, due_ms: int) -> None:
    from bridge.cli.output import facts
    from bridge.delay.duration import write_moment
    from bridge.telemetry.printable import say

    due = write_moment(due_ms)
    facts(output, {"id": one, "state": "parked", "due": due, "due_ms": due_ms}, [("id", one), ("due", due)])
    say(f"Take it back with: postdate cancel {one}")


def _route(settings: Settings, name: str) -> Route:
    """The route of that name. Raises ``SettingsError`` if there is none, ``Refused`` if it has no store."""
    from bridge.app.open_desk import refuse_without_store

    if name not in settings.routes:
        raise SettingsError(f"There is no route {name!r}; the settings have {', '.join(settings.routes)}.")
    refuse_without_store(settings, name)
    return settings.routes[name]


def _headers(texts: list[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise SettingsError(f"--header {text!r} is not NAME=TEXT.")
        if name in OWN_HEADERS:
            raise SettingsError(f"--header {name} is for producers: use {_INSTEAD.get(name, '--in or --at')} here.")
        headers[name] = value
    return headers


def _key(text: str) -> bytes:
    raw = os.fsencode(text)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise SettingsError("--key is not UTF-8 text.") from None
    if len(raw) > 255:
        raise SettingsError(f"--key has {len(raw)} bytes, a key has 255 at most.")
    return raw
