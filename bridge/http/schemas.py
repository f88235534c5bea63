"""The shapes of requests, and of the answers that only the page reads; the others are ``bridge.operate.documents``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bridge.operate.documents import Document, RouteFacts
from bridge.operate.verbs import VerbName
from bridge.pipeline.putback import Overdue

_LONGEST = 10_000


class ProblemDetails(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "No message has this id."}
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str = Field(description="What happened and what to do.")


Reason = Annotated[str, Field(max_length=500, description="why, for the audit log", examples=["customer called"])]
Moment = Annotated[str, Field(max_length=100)]
Text = Annotated[str | None, Field(max_length=2000)]
#: A filter whose absence means everything: a variable of a script that is not set must not.
Given = Annotated[str | None, Field(min_length=1, max_length=2000)]


class Asked(BaseModel):
    """The base of all request bodies: an unknown member is refused."""

    model_config = ConfigDict(extra="forbid", str_max_length=_LONGEST)


class WithReason(Asked):
    """A request that may say why."""

    reason: Reason = ""


class NewDue(WithReason):
    """A new due moment: a delay from now, or a time."""

    after: Moment | None = Field(None, alias="in", examples=["5m"], description="a delay from now; or give at")
    at: Moment | None = Field(None, examples=["2026-12-24T18:00:00Z"], description="RFC 3339; or give in")


class NewMessage(BaseModel):
    """A message to park."""

    model_config = ConfigDict(extra="forbid")

    route: Annotated[str, Field(max_length=200, examples=["orders"], description="its name in the settings")]
    body: str | None = Field(None, examples=['{"order": 4711}'], description="text; or give body_base64")
    body_base64: str | None = Field(None, description="bytes in base64; or give body")
    headers: dict[str, str] = Field({}, max_length=1000, description="headers of the message, text by name")
    routing_key: Annotated[str | None, Field(max_length=_LONGEST, examples=["new"], description="RabbitMQ")] = None
    record_key: Annotated[str | None, Field(max_length=_LONGEST, description="Kafka")] = None
    topic: Annotated[str | None, Field(max_length=_LONGEST, description="Kafka: the intake topic")] = None
    content_type: Annotated[str | None, Field(max_length=_LONGEST, description="RabbitMQ: a property")] = None
    message_id: Annotated[str | None, Field(max_length=_LONGEST, description="RabbitMQ: a property")] = None
    key: Annotated[str, Field(max_length=_LONGEST, examples=["order-4711"], description="as x-delay-key")] = ""
    after: Moment | None = Field(None, alias="in", examples=["5m"], description="a delay from now; or give at")
    at: Moment | None = Field(None, description="RFC 3339 or Unix milliseconds; or give in")


class MessageFilter(BaseModel):
    """Which messages; what is left out or empty does not restrict."""

    route: Text = Field(None, description="its name in the settings")
    key: Text = Field(None, description="the whole x-delay-key")
    due_after: Text = Field(None, examples=["-1h"], description="a time, or a duration from now")
    due_before: Text = Field(None, description="a time, or a duration from now")
    reason: Text = Field(None, description="the start of the reason")
    header: Text = Field(None, description="NAME or NAME=VALUE")
    min_size: int = Field(0, ge=0, le=2**53, description="bytes of properties, headers and body")
    min_tries: int = Field(0, ge=0, le=2**53, description="how often postdate has tried to publish it")
    parked_after: Text = Field(None, description="when the message arrived; a duration counts back")
    parked_before: Text = Field(None, description="the same, for an end")


class ListQuery(MessageFilter):
    """A page of a list."""

    state: Literal["parked", "claimed", "dead", "history"] = Field("parked", description="history: what left the store")
    cursor: Text = Field(None, description="next of the page before")
    limit: int = Field(50, ge=1, le=200, description="messages on a page")


class BulkFilter(MessageFilter, Asked):
    """Which messages a bulk operation acts on."""

    state: Literal["parked", "dead"] | None = Field(
        None, description="alone: all messages in this state. Without it, parked; with a reason, or for retry, dead"
    )


class Bulk(NewDue):
    """A verb for many messages: either ids or a filter."""

    verb: VerbName = Field(description="what becomes of the messages")
    ids: Annotated[list[str] | None, Field(max_length=_LONGEST, fail_fast=True, description="or give filter")] = None
    filter: BulkFilter | None = Field(None, description="or give ids")
    dry_run: bool = Field(False, description="only count, and show a sample")
    cursor: Text = Field(None, description="of a dry run: next of the one before, which was cut")
    max_rate: int | None = Field(None, ge=1, le=100_000, description="messages per second")


class Restore(WithReason):
    """What to restore from the journal; what is left out does not restrict."""

    route: Given = Field(None, description="its name in the settings")
    key: Given = Field(None, description="the whole x-delay-key")
    ids: Annotated[list[str] | None, Field(min_length=1, max_length=_LONGEST, fail_fast=True)] = None
    due_after: Given = Field(None, examples=["-1h"], description="a time, or a duration from now")
    due_before: Given = Field(None, description="a time, or a duration from now")
    cancelled: bool = Field(False, description="also what was cancelled or replaced, as far back as journal.keep")
    overdue: Overdue = Field(Overdue.DELIVER, description="what becomes of messages whose due moment has passed")
    dry_run: bool = Field(False, description="only count")
    max_rate: int | None = Field(None, ge=1, le=100_000, description="messages per second")


class Trouble(Document):
    """Something that an instance cannot do."""

    instance: str
    subject: str
    text: str


class StatusFacts(Document):
    """The overview."""

    now_ms: int
    age_s: float = Field(description="how old the numbers are, where this process is too busy to read new ones; else 0")
    well: bool
    level: Literal["OK", "WARN", "FAIL"]
    sentence: str
    troubles: list[Trouble]
    parked: int
    claimed: int
    dead: int
    refused: int
    overdue: int
    routes: list[RouteFacts] | None = None


class Timeline(Document):
    """What was delivered before now, and what is due after it."""

    now_ms: int
    span_ms: int
    step_ms: int
    past: list[dict[str, Any]]
    due: list[dict[str, Any]]


class Anything(Document):
    """Members as described."""


class Me(Document):
    """The caller."""

    role: Literal["viewer", "operator", "admin"]
    name: str = Field(description="what the audit log calls the caller: the name of the token, or its role")


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
    return {status: {"description": titles[status], "content": content} for status in sorted({*always, *statuses})}
