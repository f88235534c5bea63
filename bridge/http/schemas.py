"""The shapes of requests and answers, for validation and for the OpenAPI document. Answers may grow members."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ID = "1gd4r5kq2000ab3c9d00"
_LONGEST = 10_000


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"type": "about:blank", "title": "Not SearchResult", "status": 404, "detail": "No message has this id."}
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str = Field(description="What happened and what to do.")


class Answered(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(extra="allow")


class MessageFacts(Answered):
    """A message without its body."""

    id: str = Field(examples=[ID])
    state: str = Field(description="parked, claimed or dead; in the history delivered, cancelled, replaced or dead")
    due: str | None = Field(None, description="RFC 3339")
    due_ms: int | None = Field(None, description="Unix milliseconds")
    broker: str | None = None
    route: str
    key: str | None = None
    size: int | None = Field(None, description="bytes of properties, headers and body")
    tries: int | None = None
    arrived: str | None = None
    arrived_ms: int | None = None
    reason: str | None = Field(None, description="why it was not delivered, so far")
    held: bool = Field(False, description="due, but its route is paused or at its max_rate")


class MessageList(Answered):
    """One page of a list."""

    messages: list[MessageFacts]
    next: str | None = Field(description="the cursor of the next page; null at the end")
    looked_at: int = Field(description="how many messages this page looked at")
    now_ms: int


class Body(Answered):
    """The body of a message: text, or base64 where it is not UTF-8; neither where it is hidden or no longer there."""

    size: int | None
    text: str | None = None
    base64: str | None = None
    truncated: bool = False
    hidden: str = Field("", description="why it is not shown")


class LifeEvent(Answered):
    """A moment in the life of a message."""

    what: str
    at_ms: int


class MessageDetails(Answered):
    """A message with all that is known of it."""

    message: MessageFacts
    properties: dict[str, Any]
    headers: dict[str, Any]
    body: Body
    life: list[LifeEvent]
    commands: dict[str, str] = Field(description="the same as commands of postdate")


class VerbResult(Answered):
    """What a verb did to a message. State gone: it left the store."""

    id: str = Field(examples=[ID])
    state: str
    due: str | None = None
    due_ms: int | None = None
    text: str = ""


class VerbResults(Answered):
    """What a verb did to several messages."""

    results: list[VerbResult]


class Scheduled(Answered):
    """A message that was parked."""

    id: str = Field(examples=[ID])
    due: str
    due_ms: int


class SearchResult(Answered):
    """What a search found."""

    found: list[MessageFacts]
    text: str = Field(description='"" or "not seen in the last 24 h"')


Reason = Annotated[str, Field(max_length=500, description="why, for the audit log", examples=["customer called"])]
Moment = Annotated[str, Field(max_length=100)]


class Asked(BaseModel):
    """The base of all request bodies: an unknown member is refused."""

    model_config = ConfigDict(extra="forbid", str_max_length=_LONGEST)


class WithReason(Asked):
    """A request that may say why."""

    reason: Reason = ""


class NewDue(WithReason):
    """A new due moment: a delay from now, or a time."""

    after: Moment | None = Field(None, alias="in", examples=["5m"])
    at: Moment | None = Field(None, examples=["2026-12-24T18:00:00Z"])


class NewMessage(BaseModel):
    """A message to park."""

    model_config = ConfigDict(extra="forbid")

    route: Annotated[str, Field(max_length=200, examples=["orders"])]
    body: str | None = Field(None, examples=['{"order": 4711}'])
    body_base64: str | None = None
    headers: dict[str, str] = Field({}, max_length=1000)
    routing_key: Annotated[str | None, Field(max_length=_LONGEST, examples=["new"])] = None
    record_key: Annotated[str | None, Field(max_length=_LONGEST)] = None
    topic: Annotated[str | None, Field(max_length=_LONGEST)] = None
    content_type: Annotated[str | None, Field(max_length=_LONGEST)] = None
    message_id: Annotated[str | None, Field(max_length=_LONGEST)] = None
    key: Annotated[str, Field(max_length=_LONGEST, examples=["order-4711"])] = ""
    after: Moment | None = Field(None, alias="in", examples=["5m"])
    at: Moment | None = None


class BulkFilter(Asked):
    """Which messages; what is left out does not restrict."""

    state: Literal["parked", "dead"] = "parked"
    route: str | None = None
    key: str | None = None
    due_after: Moment | None = None
    due_before: Moment | None = None
    reason: str | None = None
    header: str | None = Field(None, description="NAME=VALUE")
    min_size: int = Field(0, ge=0)
    min_tries: int = Field(0, ge=0)


class Bulk(NewDue):
    """A verb for many messages: either ids or a filter."""

    verb: Literal["cancel", "reschedule", "deliver", "retry"]
    ids: list[str] | None = Field(None, max_length=_LONGEST)
    filter: BulkFilter | None = None
    dry_run: bool = False
    max_rate: int | None = Field(None, ge=1, le=100_000, description="messages per second")


class OperationFacts(Answered):
    """A bulk operation."""

    id: str
    verb: str
    state: Literal["running", "done", "stopped", "failed"]
    done: int
    skipped: int
    total: int | None
    started_ms: int
    ended_ms: int | None
    by: str
    reason: str
    text: str


class OperationList(Answered):
    """The latest bulk operations, the newest first."""

    operations: list[OperationFacts]


class DryRun(Answered):
    """What a bulk operation would act on."""

    count: int
    complete: bool = Field(description="false: there are more; counting them all would take too long")
    sample: list[MessageFacts]


class RouteFacts(Answered):
    """A route."""

    name: str
    broker: str
    kind: str = Field(description="delay or retry")
    intercept: str = Field(description="of a retry route of RabbitMQ: the queue of its consumers")
    deliver_to: str | list[str]
    mode: str
    state: Literal["running", "paused", "draining", "full"]


class Routes(Answered):
    """All routes."""

    routes: list[RouteFacts]


class Trouble(Answered):
    """Something that an instance cannot do."""

    instance: str
    subject: str
    text: str


class StatusFacts(Answered):
    """The overview."""

    now_ms: int
    well: bool
    sentence: str
    troubles: list[Trouble]
    parked: int
    claimed: int
    dead: int
    overdue: int


class Timeline(Answered):
    """What was delivered before now, and what is due after it."""

    now_ms: int
    span_ms: int
    step_ms: int
    past: list[dict[str, Any]]
    due: list[dict[str, Any]]


class Anything(Answered):
    """Members as described."""


class Me(Answered):
    """The caller."""

    role: Literal["viewer", "operator", "admin"]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors that an endpoint documents, beyond those that every endpoint may answer."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    titles = {
        400: "The request is malformed",
        401: "No valid token",
        403: "The role does not allow it",
        404: "Not found",
        408: "The body did not arrive in time",
        409: "Refused; the member state says why",
        413: "The request is too large",
        415: "Not JSON",
        421: "Not a name of this machine",
        422: "The request has mistakes",
        429: "Too many requests",
        500: "postdate failed",
        501: "Not available",
        503: "The store does not answer",
    }
    always = (400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503)
    return {one: {"description": titles[one], "content": content} for one in sorted({*always, *statuses})}
