"""Messages: list, show, schedule, cancel, reschedule, deliver, retry, search."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from starlette.responses import Response

from bridge.admin import verbs
from bridge.admin.desk import Desk, Filter, Row
from bridge.admin.moments import due_ms, read_border_ms, read_due
from bridge.admin.payload import Draft
from bridge.admin.select import ids_of_key, read_ids, refuse_without_store, unknown_route
from bridge.admin.send import Message
from bridge.admin.verbs import MessageResult
from bridge.app import lists, views
from bridge.app.brokers import broker_of
from bridge.app.lists import Wanted
from bridge.core.errors import FINE, NOT_FOUND, SettingsError
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.delay.header import OWN_HEADERS
from bridge.http import bodies
from bridge.http.access import Caller, Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.problems import Problem, as_sentence
from bridge.http.schemas import (
    ID,
    Anything,
    MessageDetails,
    MessageList,
    NewDue,
    NewMessage,
    Scheduled,
    SearchResult,
    VerbResult,
    VerbResults,
    WithReason,
    problems,
)

reads = router(Role.VIEWER, "messages")
writes = router(Role.OPERATOR, "messages")

NAMES = ("in", "at")
_ANSWERS: dict[int | str, Any] = {200: {"model": VerbResult}, **problems(404, 409)}
_ALL_ANSWERS: dict[int | str, Any] = {200: {"model": VerbResults}, **problems(404, 409)}
#: The commands that do the same as the API, for a person to copy.
_COMMANDS = {
    State.PARKED: ("cancel", "deliver", "reschedule"),
    State.CLAIMED: (),
    State.DEAD: ("retry", "cancel"),
}

Limit = Annotated[int, Query(ge=1, le=200)]
Text = Annotated[str | None, Query(max_length=2000)]
Reason = Annotated[str, Query(max_length=500, description="why, for the audit log")]


@reads.get(
    "/messages",
    summary="List messages",
    responses={200: {"model": MessageList}, **problems(501)},
)
async def list_messages(
    here: Here,
    state: Literal["parked", "claimed", "dead", "history"] = "parked",
    route: Text = None,
    key: Text = None,
    due_after: Annotated[Text, Query(examples=["-1h"], description="a time, or a duration from now")] = None,
    due_before: Text = None,
    reason: Annotated[Text, Query(description="the start of the reason")] = None,
    header: Annotated[Text, Query(description="NAME or NAME=VALUE")] = None,
    min_size: Annotated[int, Query(ge=0, le=2**53)] = 0,
    min_tries: Annotated[int, Query(ge=0, le=2**53)] = 0,
    cursor: Text = None,
    limit: Limit = 50,
) -> Response:
    """List messages in one state by due time (dead letters: by the time they died). Bodies are never in a list.

    A page looks at a bounded number of messages: with a filter it may be short, or empty, and still have a next page.
    """
    if state == "history":
        raise Problem(501, "The history is not available in this version.")
    desk = await here.desk()
    now_ms = await desk.now_ms()
    wanted = read_filter(now_ms, route, key, due_after, due_before, reason, header, min_size, min_tries)
    page = None if cursor else await lists.with_key(desk, list(here.settings.routes), State(state), wanted)
    if page is None:
        page = await lists.page(desk, State(state), wanted, lists.read_cursor(cursor), limit)
    return reply(
        {
            "messages": [views.message(row) for row in page.rows[:limit]],
            "next": lists.write_cursor(page.after),
            "looked_at": page.looked_at,
            "now_ms": now_ms,
        }
    )


def read_filter(
    now_ms: int,
    route: str | None = None,
    key: str | None = None,
    due_after: str | None = None,
    due_before: str | None = None,
    reason: str | None = None,
    header: str | None = None,
    min_size: int = 0,
    min_tries: int = 0,
) -> Wanted:
    """Read the criteria of a list. Raises ``SettingsError``."""
    base = Filter(
        route or None,
        as_bytes("key", key) if key else None,
        read_border_ms("due_after", due_after or None, now_ms),
        read_border_ms("due_before", due_before or None, now_ms),
        reason or None,
        min_size,
        min_tries,
    )
    name, _, value = (header or "").partition("=")
    return Wanted(base, (name, value) if name else None)


def as_bytes(name: str, text: str) -> bytes:
    """Return text as UTF-8. Raises ``SettingsError`` for half of a surrogate pair, which JSON can carry."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"{name} is not valid Unicode text.") from None


@reads.get("/messages/{id}", summary="Show a message", responses={200: {"model": MessageDetails}, **problems(404)})
async def show_message(id: str, here: Here, who: Who) -> Response:
    """Show a message with properties, headers, the start of its body, and the moments of its life."""
    desk = await here.desk()
    row = await _row(desk, id, views.SHOWN_BYTES)
    opened = views.open_payload(row)
    headers, properties = _headers(opened.properties)
    return reply(
        {
            "message": views.message(row),
            "properties": properties,
            "headers": _for_caller(here, who, headers),
            "origin": dict(opened.origin),
            "body": await _body(here, who, desk, row),
            "life": _life(row),
            "commands": {verb: _command(verb, row) for verb in (*_COMMANDS[row.state], "show")},
        }
    )


@reads.get(
    "/messages/{id}/body",
    summary="Read the body of a message",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "the bytes"}, **problems(404)},
)
async def read_body(id: str, here: Here, who: Who) -> Response:
    """Return the body byte for byte. The setting ui.bodies may not allow it."""
    if not bodies.sees_all(here.settings.ui.bodies, who.role is Role.ADMIN):
        raise Problem(403, f"{as_sentence(_hidden(here))} An admin token and ui.bodies decide who sees bodies.")
    row = await _row(await here.desk(), id, -1)
    headers = {"Content-Disposition": f'attachment; filename="{row.id.decode()}"'}
    return Response(views.open_payload(row).body, 200, headers, "application/octet-stream")


def _hidden(here: Backend) -> str:
    return bodies.OFF if here.settings.ui.bodies == "off" else "your role does not see raw bodies"


@writes.post(
    "/messages",
    summary="Schedule a message",
    status_code=201,
    responses={
        200: {"model": Scheduled, "description": "Sent before with the same key"},
        201: {"model": Scheduled},
        **problems(409, 501),
    },
)
async def schedule(
    new: NewMessage,
    here: Here,
    who: Who,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> Response:
    """Park a message without a broker. A running postdate delivers it when it is due.

    With the header Idempotency-Key a repeated request parks no second message.
    """
    if idempotency_key is not None:
        raise Problem(501, "Idempotency-Key is not available in this version.")
    made = draft(here, new)
    one, message = await here.stores.park(here.settings.routes[new.route].broker, made)
    await here.note(who, "send", one.decode())
    return reply({"id": one.decode(), "due": write_moment(message.due_ms), "due_ms": message.due_ms}, 201)


def draft(here: Backend, new: NewMessage) -> Callable[[int], Message]:
    """Return how to make the message, judged as far as possible. Raises ``SettingsError``, ``Refused``."""
    settings = here.settings
    if new.route not in settings.routes:
        raise SettingsError(unknown_route(settings, new.route))
    refuse_without_store(settings, new.route)
    route = settings.routes[new.route]
    if mine := sorted(OWN_HEADERS & new.headers.keys()):
        raise SettingsError(f"The header {mine[0]} is for producers. Use the members in, at and key.")
    texts = (new.routing_key, new.record_key, new.topic, new.content_type, new.message_id, *new.headers.values())
    for text in (*texts, *new.headers):
        as_bytes("The message", text or "")
    parts = Draft(
        _content(new), new.headers, new.routing_key, new.record_key, new.topic, new.content_type, new.message_id
    )
    order_key, payload = broker_of(route.broker).pack(settings, new.route, parts)
    if len(payload) > settings.limits.max_body:
        text = f"The message is too large: {len(payload)} bytes. limits.max_body allows {settings.limits.max_body}."
        raise SettingsError(text)
    key = as_bytes("key", new.key)
    if len(key) > 255:
        raise SettingsError(f"key is too long: {len(key)} bytes. The maximum is 255.")
    read = read_due(new.after, new.at, NAMES)

    def make(now_ms: int) -> Message:
        due = max(due_ms(read, now_ms, settings.limits.max_delay), now_ms)
        return Message(new.route, route.order, settings.on_same_key_of(new.route), order_key, payload, due, key)

    return make


def _content(new: NewMessage) -> bytes:
    if (new.body is None) == (new.body_base64 is None):
        raise SettingsError("Give one of body (text) and body_base64.")
    if new.body is not None:
        return as_bytes("body", new.body)
    try:
        return b64decode(new.body_base64 or "", validate=True)
    except ValueError:
        raise SettingsError("body_base64 is not base64.") from None


# -- verbs ------------------------------------------------------------------------------------------------------------


@writes.patch("/messages/{id}", summary="Reschedule a message", responses=_ANSWERS)
async def reschedule(id: str, due: NewDue, here: Here, who: Who) -> Response:
    """Change when a parked message is due. A time in the past means now."""
    read = read_due(due.after, due.at, NAMES)
    desk = await here.desk()
    moment_ms = due_ms(read, await desk.now_ms(), here.settings.limits.max_delay)
    return await _act(here, who, "reschedule", id, due.reason, partial(verbs.reschedule, due_ms=moment_ms))


@writes.post(
    "/messages/{id}/deliver",
    summary="Deliver a message now",
    responses=_ANSWERS,
)
async def deliver(id: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """Make a parked message due now."""
    return await _act(here, who, "deliver", id, why.reason if why else "", verbs.deliver)


@writes.post("/messages/{id}/retry", summary="Retry a dead letter", responses=_ANSWERS)
async def retry(id: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """Park a dead letter again, due now, with its full number of tries."""
    return await _act(here, who, "retry", id, why.reason if why else "", verbs.retry)


@writes.delete("/messages/{id}", summary="Cancel a message", responses=_ANSWERS)
async def cancel(id: str, here: Here, who: Who, reason: Reason = "") -> Response:
    """Delete a parked message or a dead letter. It is never delivered."""
    return await _act(here, who, "cancel", id, reason, verbs.cancel)


@writes.delete("/keys/{key:path}", summary="Cancel by key", responses=_ALL_ANSWERS)
async def cancel_key(key: str, here: Here, who: Who, route: Text = None, reason: Reason = "") -> Response:
    """Cancel the messages with a producer's key. The route may be left out where only one is configured."""
    desk = await here.desk()
    ids = await ids_of_key(desk, here.settings, as_bytes("key", key), route)
    results = await verbs.cancel(desk, ids)
    await here.note(who, "cancel", f"key {key}", reason)
    if all(one.code for one in results):
        raise _refusal(results[0])
    return reply({"results": [one.as_dict() for one in results]})


async def _act(
    here: Backend,
    who: Caller,
    verb: str,
    one: str,
    reason: str,
    act: Callable[[Desk, list[bytes]], Awaitable[list[MessageResult]]],
) -> Response:
    """Act on one message. Raises ``Problem`` where nothing was done."""
    (result,) = await act(await here.desk(), _read_id(one))
    if result.code is not FINE:
        raise _refusal(result)
    await here.note(who, verb, one, reason)
    return reply(result.as_dict())


def _refusal(result: MessageResult) -> Problem:
    status = 404 if result.code == NOT_FOUND else 409
    return Problem(status, as_sentence(result.text), id=result.id.decode(), state=result.state)


# -- search -----------------------------------------------------------------------------------------------------------


@reads.get("/search", summary="Find a message by id or key", responses={200: {"model": SearchResult}, **problems()})
async def search(
    here: Here, q: Annotated[str, Query(min_length=1, max_length=500, examples=[ID])], route: Text = None
) -> Response:
    """Find parked, claimed and dead messages by their id or by the producer's key."""
    desk = await here.desk()
    raw = as_bytes("q", q.strip())
    ids: list[bytes] = []
    with suppress(SettingsError):  # else it is a key
        ids += read_ids([q.strip()])
    for name in [route] if route else here.settings.routes:
        ids += (await desk.find(name, raw)).ids
    rows = await desk.look(list(dict.fromkeys(ids)), 256)
    return reply({"found": [views.message(row) for row in rows[:100]], "text": "" if rows else "not found"})


@reads.get("/dead/reasons", summary="Count dead letters by reason", responses={200: {"model": Anything}, **problems()})
async def dead_reasons(here: Here, route: Text = None) -> Response:
    """Count the dead letters by the kind of their reason. Looks at a bounded number of them."""
    page = await lists.page(await here.desk(), State.DEAD, Wanted(Filter(route=route or None)), None, lists.LOOKED_MAX)
    counts = Counter(row.reason.partition(":")[0] or "unknown" for row in page.rows)
    reasons = [{"reason": reason, "count": count} for reason, count in counts.most_common(50)]
    return reply({"reasons": reasons, "looked_at": page.looked_at, "complete": page.after is None})


# -- pieces -----------------------------------------------------------------------------------------------------------


def _read_id(text: str) -> list[bytes]:
    """Read an id of a path. Raises ``Problem`` (404): a path that names nothing."""
    try:
        return read_ids([text])
    except SettingsError:
        raise Problem(404, "This is not a message id. An id has 20 digits and letters, as in a list.") from None


async def _row(desk: Desk, one: str, payload_bytes: int) -> Row:
    """Return a message whose payload can be opened. Raises ``Problem`` (404)."""
    ids = _read_id(one)
    rows = await desk.look(ids, payload_bytes)
    try:
        for row in rows:
            views.open_payload(row)
    except ValueError:  # properties larger than a frame: read all of it
        rows = await desk.look(ids, -1)
    if not rows:
        raise Problem(404, as_sentence(verbs.UNKNOWN), id=one, state="none")
    return rows[0]


def _headers(properties: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers by name, and the other properties. A repeated name gets `` #2``. Pure."""
    rest = {name: value for name, value in properties.items() if name != "headers"}
    given = properties.get("headers") or {}
    if isinstance(given, dict):
        return given, rest
    found: dict[str, Any] = {}
    for one in given:
        name, number = str(one["name"]), 1
        while (label := name if number == 1 else f"{name} #{number}") in found:
            number += 1
        found[label] = one["value"]
    return found, rest


def _for_caller(here: Backend, who: Caller, headers: dict[str, Any]) -> Any:
    ui = here.settings.ui
    return headers if bodies.sees_all(ui.bodies, who.role is Role.ADMIN) else bodies.masked(headers, ui.mask)


async def _body(here: Backend, who: Caller, desk: Desk, row: Row) -> dict[str, Any]:
    ui, opened = here.settings.ui, views.open_payload(row)
    if bodies.sees_all(ui.bodies, who.role is Role.ADMIN):
        return {
            "text": None,
            "base64": None,
            **views.body(opened.body[: views.BODY_BYTES], opened.body_size),
            "hidden": "",
        }
    if ui.bodies == "masked" and len(opened.body) < opened.body_size <= bodies.MASKED_MAX:
        whole = await desk.look([row.id], -1)
        opened = views.open_payload(whole[0]) if whole else opened
    text, why = bodies.masked_body(ui.bodies, ui.mask, opened.body, opened.body_size)
    cut = text is not None and len(text) > views.BODY_BYTES
    part = text[: views.BODY_BYTES] if text is not None else None
    return {"size": opened.body_size, "text": part, "base64": None, "truncated": cut, "hidden": why}


def _life(row: Row) -> list[dict[str, Any]]:
    """Return the known moments of a message that is in the store."""
    life: list[dict[str, Any]] = [{"what": "received", "at_ms": row.arrived_ms}, {"what": "due", "at_ms": row.due_ms}]
    if row.state is State.DEAD:
        life.append({"what": "dead", "at_ms": row.at_ms})
    return sorted(life, key=lambda one: int(one["at_ms"]))


def _command(verb: str, row: Row) -> str:
    more = " --in 5m" if verb == "reschedule" else ""
    return f"postdate {verb} {row.id.decode()}{more}"
