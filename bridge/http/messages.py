"""Messages: list, show, schedule, and the verbs."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.responses import Response

from bridge.core.errors import FINE, SettingsError
from bridge.core.state import State
from bridge.desk.past import PastFilter
from bridge.desk.payload import Draft
from bridge.http.access import Caller, Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.problems import Problem, refusal
from bridge.http.schemas import ListQuery, MessageFilter, NewDue, NewMessage, Text, WithReason, problems
from bridge.operate import masking
from bridge.operate.documents import (
    MessageDetails,
    MessageLife,
    MessageList,
    PastMessage,
    Scheduled,
    VerbResult,
    VerbResults,
)
from bridge.operate.find import Criteria, read_criteria
from bridge.operate.moments import read_due
from bridge.operate.operator import Due
from bridge.operate.select import judge_reason, read_ids
from bridge.operate.verbs import CANCEL, VERBS, Verb
from bridge.telemetry.printable import as_sentence

reads = router(Role.VIEWER, "messages")
writes = router(Role.OPERATOR, "messages")

NAMES = ("in", "at")
_ANSWERS: dict[int | str, Any] = {200: {"model": VerbResult}, **problems(404, 409)}
_ALL_ANSWERS: dict[int | str, Any] = {200: {"model": VerbResults}, **problems(404, 409)}

Reason = Annotated[str, Query(max_length=500, description="why, for the audit log")]


@reads.get("/messages", summary="List messages", responses={200: {"model": MessageList}, **problems()})
async def list_messages(here: Here, who: Who, asked: Annotated[ListQuery, Query()]) -> Response:
    """List messages in one state by due time (dead letters: by the time they died). Bodies are never in a list.

    A page looks at a bounded number of messages: with a filter it may be short, or empty, and still have a next page.
    """
    operator = here.operator(who)
    wanted = criteria(await operator.now_ms(), asked)
    if asked.state == "history":  # the moments of the filter count for the end of a message here
        past = wanted.base
        wanted_past = PastFilter(past.route, past.key, None, None, past.due_from_ms, past.due_before_ms, past.reason)
        async with here.looking():
            return reply(await operator.past_page(wanted_past, asked.cursor, asked.limit))
    judge_reason(asked.reason)  # of what left the store, it may be the note of an operator
    judge_header(here, who, wanted)
    async with here.looking():
        return reply(await operator.page(State(asked.state), wanted, asked.cursor, asked.limit))


def criteria(now_ms: int, asked: MessageFilter) -> Criteria:
    """Read the criteria of a list; what is empty does not restrict. Raises ``SettingsError``."""
    restricting = {name: value for name, value in asked.model_dump().items() if value}
    return read_criteria(now_ms, str, asked.key.encode() if asked.key else None, restricting)


def judge_header(here: Backend, who: Caller, wanted: Criteria) -> None:
    """Raise ``Problem`` for a filter by the value of a header that is hidden from the caller."""
    name, given = wanted.header or ("", "")
    if given and here.sight_of(who).hides(name):
        raise Problem(403, f"The header {name} is hidden from your role (ui.mask), so it cannot be a filter.")


def _as_bytes(name: str, text: str) -> bytes:
    """Return text as UTF-8. Raises ``SettingsError`` for half of a surrogate pair, which JSON can carry."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"{name} is not valid Unicode text.") from None


@reads.get("/messages/{id}", summary="Show a message", responses={200: {"model": MessageDetails}, **problems(404)})
async def show_message(
    id: str, here: Here, who: Who, x_postdate_via: Annotated[str, Header(max_length=20)] = ""
) -> Response:
    """Show a message with properties, headers, the start of its body, and the moments of its life."""
    details = await here.operator(who).show(_read_id(id))
    if x_postdate_via != "cli":
        return reply({name: value for name, value in details.as_dict().items() if name != "opened"})
    return reply(details)


@reads.get(
    "/messages/{id}/history",
    summary="Read the life of a message",
    responses={200: {"model": MessageLife}, **problems(404)},
)
async def read_history(id: str, here: Here, who: Who) -> Response:
    """Return the moments of a message, and what became of it if it has left the store."""
    details = await here.operator(who).show(_read_id(id))
    message = details.message
    ended = details.body.hidden.partition(": ")[2] if isinstance(message, PastMessage) else ""
    return reply(MessageLife(id=message.id, state=message.state, life=details.life, text=ended))


@reads.get(
    "/messages/{id}/body",
    summary="Read the body of a message",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "the bytes"}, **problems(404)},
)
async def read_body(id: str, here: Here, who: Who) -> Response:
    """Return the body byte for byte. The setting ui.bodies may not allow it."""
    if not here.sight_of(who).whole:
        why = masking.OFF if here.settings.ui.bodies == "off" else "your role does not see raw bodies"
        raise Problem(403, f"{as_sentence(why)} An admin token and ui.bodies decide who sees bodies.")
    content = await here.operator(who).body(_read_id(id))
    headers = {"Content-Disposition": f'attachment; filename="{id}"'}
    return Response(content, 200, headers, "application/octet-stream")


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
    new: NewMessage, here: Here, who: Who, idempotency_key: Annotated[str | None, Header(max_length=255)] = None
) -> Response:
    """Park a message without a broker. A running postdate delivers it when it is due.

    With the header Idempotency-Key a repeated request parks no second message.
    """
    named = (new.routing_key, new.record_key, new.topic, new.content_type, new.message_id)
    for text in (*new.headers, *new.headers.values()):
        _as_bytes("The message", text)
    draft = Draft(_content(new), new.headers, *named, in_api=True)
    due = read_due(new.after, new.at, NAMES)
    scheduled, fresh = await here.operator(who).send(new.route, draft, new.key, due, idempotency_key)
    return reply(scheduled, 201 if fresh else 200)


def _content(new: NewMessage) -> bytes:
    if (new.body is None) == (new.body_base64 is None):
        raise SettingsError("Give one of body (text) and body_base64.")
    if new.body is not None:
        return _as_bytes("body", new.body)
    try:
        return b64decode(new.body_base64 or "", validate=True)
    except ValueError:
        raise SettingsError("body_base64 is not base64.") from None


# -- verbs ------------------------------------------------------------------------------------------------------------


def _endpoint(verb: Verb) -> Callable[..., Any]:
    """Return the endpoint of a verb: with a new due moment, with the reason in the path, or with one in the body."""
    if verb.takes_due:

        async def rescheduling(id: str, due: NewDue, here: Here, who: Who) -> Response:
            return await _act(here, who, verb, id, due.reason, read_due(due.after, due.at, NAMES))

        return rescheduling
    if verb.method == "DELETE":

        async def deleting(id: str, here: Here, who: Who, reason: Reason = "") -> Response:
            return await _act(here, who, verb, id, reason)

        return deleting

    async def acting(id: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
        return await _act(here, who, verb, id, why.reason if why else "")

    return acting


for _verb in VERBS:
    writes.add_api_route(
        "/messages/{id}" + (f"/{_verb.name}" if _verb.method == "POST" else ""),
        _endpoint(_verb),
        methods=[_verb.method],
        name=_verb.name,
        summary=_verb.summary,
        description=_verb.help,
        responses=_ANSWERS,
    )


@writes.delete("/keys/{key:path}", summary="Cancel by key", responses=_ALL_ANSWERS)
async def cancel_key(key: str, here: Here, who: Who, route: Text = None, reason: Reason = "") -> Response:
    """Cancel the messages with a producer's key. The route may be left out where only one is configured."""
    operator = here.operator(who)
    ids = await operator.ids_of_key(key.encode(), route)
    results = await operator.act(CANCEL, ids, reason=reason, what=f"key {key}")
    if all(result.code != FINE for result in results):
        raise refusal(results[0])
    return reply(VerbResults(results=results))


async def _act(here: Backend, who: Caller, verb: Verb, id: str, reason: str, due: Due | None = None) -> Response:
    """Act on one message. Raises ``Problem`` where nothing was done."""
    (result,) = await here.operator(who).act(verb, [_read_id(id)], due, reason)
    if result.code != FINE:
        raise refusal(result)
    return reply(result)


def _read_id(text: str) -> str:
    """Read an id of a path. Raises ``Problem`` (404): a path that names nothing."""
    try:
        return read_ids([text])[0].decode()
    except SettingsError:
        raise Problem(404, "This is not a message id. An id has 20 digits and letters, as in a list.") from None
