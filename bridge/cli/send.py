"""``postdate send``: park a message without a broker."""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64encode
from typing import Annotated

import typer

from bridge.admin.moments import due_ms, read_due
from bridge.admin.payload import Draft, Packed
from bridge.admin.select import refuse_without_store, unknown_route
from bridge.admin.send import Message
from bridge.app.brokers import broker_of
from bridge.app.open_desk import at_api, at_desk, park_message
from bridge.app.remote import api_address
from bridge.cli.audited import note
from bridge.cli.options import AtOption, ConfigOption, InOption, Output, OutputOption
from bridge.cli.output import facts
from bridge.core.errors import Refused, SettingsError, StoreUnavailable, StoreUnfit
from bridge.delay.duration import write_moment
from bridge.delay.header import OWN_HEADERS
from bridge.settings import Route, Settings, require_routes, settings_from
from bridge.settings.plan import store_of
from bridge.telemetry.printable import complain, say

_INSTEAD = {"x-delay-key": "--key", "x-delay-cancel": "`postdate cancel`"}


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
    settings = settings_from(config)
    content = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    draft = Draft(content, _headers(header or []), routing_key, record_key, topic, content_type, message_id)
    if address := api_address():
        told = _told(route, draft, key, after, at)
        _print(output, *asyncio.run(at_api(address, lambda desk: desk.send(told))))
        return
    require_routes(settings)
    found = _route(settings, route)
    order_key, payload = _packed(settings, route, found, draft)

    def make(now_ms: int) -> Message:
        due = due_ms(read, now_ms, settings.limits.max_delay)
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
    _note(settings, one, route)
    _print(output, one.decode(), message.due_ms)


def _packed(settings: Settings, name: str, route: Route, draft: Draft) -> Packed:
    """Return the message as the route's broker packs it. Raises ``SettingsError`` if it is too large."""
    packed = broker_of(route.broker).pack(settings, name, draft)
    size, most = len(packed[1]), settings.limits.max_body
    if size > most:
        raise SettingsError(f"The message is too large: {size} bytes. limits.max_body allows {most} bytes.")
    return packed


def _note(settings: Settings, one: bytes, route: str) -> None:
    """Write an entry of the audit log. The message is parked, so a failure is only a warning."""
    try:
        at_desk(settings, lambda desk: note(desk, "send", f"{one.decode()} on route {route}", 1), route)
    except (Refused, StoreUnavailable, StoreUnfit) as error:
        complain(f"Warning: the audit log has no entry for this: {error}.")


def _print(output: Output, one: str, due_ms: int) -> None:
    due = write_moment(due_ms)
    facts(output, {"id": one, "state": "parked", "due": due, "due_ms": due_ms}, [("id", one), ("due", due)])
    say(f"To cancel it: postdate cancel {one}")


def _told(route: str, draft: Draft, key: str, after: str | None, at: str | None) -> dict[str, object]:
    """Return a message as the API takes it."""
    body = {"body_base64": b64encode(draft.body).decode()}
    fields = draft._asdict()
    del fields["in_api"]
    return {**fields, "route": route, "key": key, "in": after, "at": at, **body} | {"body": None}


def _route(settings: Settings, name: str) -> Route:
    """Return the route of that name. Raises ``SettingsError`` if there is none, ``Refused`` if it has no store."""
    if name not in settings.routes:
        raise SettingsError(unknown_route(settings, name))
    refuse_without_store(settings, name)
    return settings.routes[name]


def _headers(texts: list[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise SettingsError(f"--header {text!r} is not of the form NAME=TEXT.")
        if name in OWN_HEADERS:
            raise SettingsError(f"--header {name} is for producers. Use {_INSTEAD.get(name, '--in or --at')}.")
        headers[name] = value
    return headers


def _key(text: str) -> bytes:
    raw = os.fsencode(text)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise SettingsError("--key is not UTF-8 text.") from None
    if len(raw) > 255:
        raise SettingsError(f"--key is too long: {len(raw)} bytes. The maximum is 255.")
    return raw
