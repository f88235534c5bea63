"""Messages: list, show, schedule, cancel, reschedule, deliver, retry, search."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from starlette.responses import Response

from bridge.admin import verbs
from bridge.admin.desk import Desk, Filter, Row
from bridge.admin.moments import due_ms, read_border_ms, read_due
from bridge.admin.past import PastFilter
from bridge.admin.payload import Draft, Opened
from bridge.admin.select import ids_of_key, read_ids, refuse_without_store, unknown_route
from bridge.admin.send import Message
from bridge.admin.verbs import MessageResult
from bridge.admin.where import ended, ends, history_view, life_of, not_seen
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
    Anything,
    MessageDetails,
    MessageList,
    NewDue,
    NewMessage,
    Scheduled,
    VerbResult,
    VerbResults,
    WithReason,
    problems,
)
from bridge.parking.history import HistoryRow

reads = router(Role.VIEWER, "messages")
writes = router(Role.OPERATOR, "messages")

NAMES = ("in", "at")
#: For how long the id for an Idempotency-Key is remembered, and how late the history may be.
_REMEMBERED_MS, _HISTORY_S = 24 * 3_600_000, 1.2
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
    responses={200: {"model": MessageList}, **problems()},
)
async def list_messages(
    here: Here,
    who: Who,
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
        return await _history(here, route, key, due_after, due_before, reason, cursor, limit)
    desk = await here.desk()
    now_ms = await desk.now_ms()
    judge_header(here, who, header)
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


async def _history(
    here: Backend,
    route: str | None,
    key: str | None,
    after: str | None,
    before: str | None,
    reason: str | None,
    cursor: str | None,
    limit: int,
) -> Response:
    """Return a page of the history, newest first. The due moments of the filter count for the end of a message here."""
    desk = await here.desk()
    now_ms = await desk.now_ms()
    base = read_filter(now_ms, route, key, after, before, reason).base
    wanted = PastFilter(base.route, base.key, None, None, base.due_from_ms, base.due_before_ms, base.reason)
    page = await lists.past_page(desk, wanted, lists.read_cursor(cursor), limit)
    return reply(
        {
            "messages": [history_view(row) for row in page.rows],
            "next": lists.write_cursor(page.after),
            "looked_at": page.looked_at,
            "now_ms": now_ms,
            "text": "" if page.rows or page.after else await not_seen(desk),
            "history": {
                "keep_ms": desk.limits.keep_ms,
                "max": desk.limits.most,
                "since_ms": await desk.history_since_ms(),
            },
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


def judge_header(here: Backend, who: Caller, header: str | None) -> None:
    """Refuse a filter by the value of a header that the caller does not see: answers would tell it by trial."""
    name, given, _ = (header or "").partition("=")
    ui = here.settings.ui
    if given and bodies.is_masked(name, ui.mask) and not bodies.sees_all(ui.bodies, who.role is Role.ADMIN):
        raise Problem(403, f"The header {name} is hidden from your role (ui.mask), so it cannot be a filter.")


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
    past = await _ended(desk, id)
    if row is None:
        if past is None:
            raise await _unknown(desk, id)
        return reply(_departed(past))
    opened = views.open_payload(row)
    headers, properties = _headers(opened.properties)
    return reply(
        {
            "message": {**views.message(row), **views.retry(here.settings, row)},
            "properties": properties,
            "headers": _for_caller(here, who, headers),
            "origin": dict(opened.origin),
            **_opened(here, who, opened),
            "body": await _body(here, who, desk, row),
            "life": _life(row, past),
            "commands": {verb: _command(verb, row) for verb in (*_COMMANDS[row.state], "show")},
        }
    )


@reads.get(
    "/messages/{id}/history",
    summary="Read the life of a message",
    responses={200: {"model": Anything}, **problems(404)},
)
async def read_history(id: str, here: Here) -> Response:
    """Return the moments of a message, and what became of it if it has left the store."""
    desk = await here.desk()
    row, past = await _row(desk, id, views.SHOWN_BYTES), await _ended(desk, id)
    if row is None and past is None:
        raise Problem(404, as_sentence(f"No message has this id: {await not_seen(desk)}"), id=id, state="none")
    life = _life(row, past) if row else life_of(past) if past else []
    state = row.state.value if row else past.state.value if past else "none"
    return reply({"id": id, "state": state, "life": life, "text": "" if row or not past else ended(past)})


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
    desk = await here.desk()
    row = await _row(desk, id, -1)
    if row is None:
        raise await _unknown(desk, id)
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
        **problems(409),
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
    made = draft(here, new)
    desk = await here.desk()
    reserve = None
    if idempotency_key is not None:
        digest = sha256(new.model_dump_json(by_alias=True).encode()).digest()
        reserve = partial(_reserve, desk, as_bytes("Idempotency-Key", idempotency_key), digest)
    try:
        one, message = await here.stores.park(here.settings.routes[new.route].broker, made, reserve)
    except _SentBefore as before:
        return reply(before.answer)
    await here.note(who, "send", one.decode(), 1)
    return reply({"id": one.decode(), "due": write_moment(message.due_ms), "due_ms": message.due_ms}, 201)


class _SentBefore(Exception):
    """A request that was carried out before."""

    def __init__(self, one: bytes, due_ms: int) -> None:
        super().__init__()
        self.answer = {"id": one.decode(), "due": write_moment(due_ms), "due_ms": due_ms}


async def _reserve(desk: Desk, key: bytes, digest: bytes, one: bytes) -> bytes:
    """Return the id for a request with an Idempotency-Key: the same one each time.

    It is remembered before the message is parked. So a repeated request finds the message, or what became of it, or it
    parks the message under the same id: the first request failed. Raises ``_SentBefore``.
    """
    known = await desk.remember(key, digest, one, _REMEMBERED_MS)
    if known is None:
        return one
    if known.digest != digest:
        raise Problem(422, "This Idempotency-Key was used for another message. Use a new key.")
    for last in (False, True):
        if rows := await desk.look([known.id], 0):
            raise _SentBefore(known.id, rows[0].due_ms)
        if entry := (await ends(desk, [known.id])).get(known.id):
            raise _SentBefore(known.id, entry.due_ms)
        if not last:  # the history is written once a second
            await asyncio.sleep(_HISTORY_S)
    return known.id


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
    named = (new.routing_key, new.record_key, new.topic, new.content_type, new.message_id)
    parts = Draft(_content(new), new.headers, *named, in_api=True)
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
    return await _act(here, who, "cancel", id, reason, partial(verbs.cancel, reason=reason))


@writes.delete("/keys/{key:path}", summary="Cancel by key", responses=_ALL_ANSWERS)
async def cancel_key(key: str, here: Here, who: Who, route: Text = None, reason: Reason = "") -> Response:
    """Cancel the messages with a producer's key. The route may be left out where only one is configured."""
    desk = await here.desk()
    ids = await ids_of_key(desk, here.settings, as_bytes("key", key), route)
    results = await verbs.cancel(desk, ids, reason)
    fine = sum(one.code == FINE for one in results)
    if not fine:
        raise await _refusal(desk, results[0])
    await here.note(who, "cancel", f"key {key}", fine, reason)
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
    desk = await here.desk()
    (result,) = await act(desk, _read_id(one))
    if result.code != FINE:
        raise await _refusal(desk, result)
    await here.note(who, verb, one, 1, reason)
    return reply(result.as_dict())


async def _refusal(desk: Desk, result: MessageResult) -> Problem:
    """Return why nothing was done: the message's real state, also where it has left the store."""
    if result.code == NOT_FOUND:
        return await _unknown(desk, result.id.decode())
    rows = await desk.look([result.id], 0)
    lease_ms = next((row.at_ms for row in rows if row.state is State.CLAIMED and row.at_ms), None)
    more = {} if lease_ms is None else {"lease_until": write_moment(lease_ms)}
    return Problem(409, as_sentence(result.text), id=result.id.decode(), state=result.state, **more)


async def _unknown(desk: Desk, one: str) -> Problem:
    """Return the problem for a message that is not in the store: 409 with its end, or 404."""
    if entry := await _ended(desk, one):
        more = {"at": write_moment(entry.ended_ms), "at_ms": entry.ended_ms}
        return Problem(409, as_sentence(ended(entry)), id=one, state=entry.state.value, **more)
    text = f"No message has this id: {await not_seen(desk)}"
    return Problem(404, as_sentence(text), id=one, state="none")


async def _ended(desk: Desk, one: str) -> HistoryRow | None:
    """Return what became of a message, None if that is not known."""
    (raw,) = _read_id(one)
    return (await ends(desk, [raw])).get(raw)


# -- pieces -----------------------------------------------------------------------------------------------------------


def _read_id(text: str) -> list[bytes]:
    """Read an id of a path. Raises ``Problem`` (404): a path that names nothing."""
    try:
        return read_ids([text])
    except SettingsError:
        raise Problem(404, "This is not a message id. An id has 20 digits and letters, as in a list.") from None


async def _row(desk: Desk, one: str, payload_bytes: int) -> Row | None:
    """Return a message of the store whose payload can be opened; None if it is not there."""
    ids = _read_id(one)
    rows = await desk.look(ids, payload_bytes)
    try:
        for row in rows:
            views.open_payload(row)
    except ValueError:  # properties larger than a frame: read all of it
        rows = await desk.look(ids, -1)
    return rows[0] if rows else None


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


def _opened(here: Backend, who: Caller, opened: Opened) -> dict[str, Any]:
    """Return what `postdate show` prints: everything in its order, for a command whose caller may see it."""
    if who.via != "cli" or not bodies.sees_all(here.settings.ui.bodies, who.role is Role.ADMIN):
        return {}
    return {"opened": {"properties": opened.properties, "other": opened.other}}


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


def _life(row: Row, past: HistoryRow | None) -> list[dict[str, Any]]:
    """Return the known moments of a message that is in the store."""
    if row.state is State.DEAD and past is not None:
        return life_of(past)
    life: list[dict[str, Any]] = [{"what": "received", "at_ms": row.arrived_ms}, {"what": "due", "at_ms": row.due_ms}]
    if row.state is State.DEAD:
        life.append({"what": "dead", "at_ms": row.at_ms})
    return sorted(life, key=lambda one: int(one["at_ms"]))


def _departed(entry: HistoryRow) -> dict[str, Any]:
    """Return what the history knows of a message that has left the store."""
    hidden = f"the message is no longer in the store: {ended(entry)}"
    return {
        "message": history_view(entry),
        "properties": {},
        "headers": {},
        "origin": {},
        "body": {"size": entry.size, "text": None, "base64": None, "truncated": False, "hidden": hidden},
        "life": life_of(entry),
        "commands": {"show": f"postdate show {entry.id.decode()}"},
    }


def _command(verb: str, row: Row) -> str:
    more = " --in 5m" if verb == "reschedule" else ""
    return f"postdate {verb} {row.id.decode()}{more}"
