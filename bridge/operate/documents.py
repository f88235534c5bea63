"""Documents: the shape of everything that operators read, defined once.

The JSON of the commands and of the API, the OpenAPI schemas and the client of the API follow from these classes. A
member that was not given is left out of the JSON. Members that this version does not know are kept.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ID = "1gd4r5kq2000ab3c9d00"


class Document(BaseModel):
    """The base of all documents."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the members that were given as JSON values, in their order."""
        given, members = self.model_fields_set, {**self.__dict__, **(self.model_extra or {})}
        named = ((name, value) for name, value in members.items() if name in given)
        return {name: value if type(value) in _PLAIN else _plain(value) for name, value in named}


#: Judged first: to ask Pydantic whether a value is a document takes far longer.
_PLAIN = frozenset((str, int, bool, type(None), float, dict))


def _plain(value: Any) -> Any:
    """Return a member as a JSON value. What a message carries may be nested deeply, and stays as it is."""
    if isinstance(value, list):
        return [item if type(item) in _PLAIN else _plain(item) for item in value]
    return value.as_dict() if isinstance(value, Document) else value


class LifeEvent(Document):
    """A moment in the life of a message."""

    what: str = Field(description="received, due, claimed, published, confirmed, cancelled, replaced or dead")
    at_ms: int = Field(description="Unix milliseconds")


class RetryFacts(Document):
    """The attempt for which a message of a retry route waits, and how its consumers failed."""

    attempt: int = Field(description="the number of this attempt, from 1")
    attempts: int = Field(description="attempts that the schedule has")
    reason: str | None = Field(default=None, description="how the consumer failed last")
    id: str = Field(description="the id of the message when it first failed")
    first_failed: str = Field(description="RFC 3339")


class MessageFacts(Document):
    """A message without its body."""

    id: str = Field(examples=[ID], description="its x-delay-id")
    state: str = Field(description="parked, claimed or dead; in the history delivered, cancelled, replaced or dead")
    due: str | None = Field(default=None, description="RFC 3339")
    due_ms: int | None = Field(default=None, description="Unix milliseconds")
    broker: str | None = Field(default=None, description="rabbitmq or kafka")
    route: str = Field(description="its name in the settings")
    routing_key: str | None = Field(default=None, description="RabbitMQ")
    topic: str | None = Field(default=None, description="Kafka: the intake topic")
    partition: int | None = Field(default=None, description="Kafka: the partition of the intake topic")
    record_key: str | None = Field(default=None, description="Kafka")
    key: str | None = Field(default=None, description="the producer's x-delay-key")
    size: int | None = Field(default=None, description="bytes of properties, headers and body")
    tries: int | None = Field(default=None, description="how often postdate has tried to publish it")
    arrived: str | None = Field(default=None, description="when postdate took it in, RFC 3339")
    arrived_ms: int | None = Field(default=None, description="the same, Unix milliseconds")
    reason: str | None = Field(default=None, description="why it was not delivered, so far")
    tier: str | None = Field(default=None, description="redis, or cold: it waits in the journal's database alone")
    held: bool = Field(default=False, description="due, but its route is paused, at its max_rate or missing")
    next_try: str | None = Field(default=None, description="parked, after a refusal: when it is tried again")
    lease_until: str | None = Field(default=None, description="claimed: when its lease ends")
    died: str | None = Field(default=None, description="dead: when it became a dead letter")
    first_copy: str | None = Field(default=None, description="the id of the first copy of a redelivered message")
    retry: RetryFacts | None = Field(default=None, description="of a retry route")


class PastMessage(MessageFacts):
    """A message that left the store, or became a dead letter, as the history knows it."""

    ended: str = Field(description="when it left the store or became a dead letter, RFC 3339")
    ended_ms: int = Field(description="the same, Unix milliseconds")
    late_ms: int | None = Field(default=None, description="delivered: milliseconds after its due moment")
    life: list[LifeEvent] = Field(description="its known moments, in their order")


class MessageList(Document):
    """One page of a list."""

    messages: list[MessageFacts]
    next: str | None = Field(description="the cursor of the next page; null at the end")
    looked_at: int = Field(description="how many messages this page looked at")
    now_ms: int


class HistoryFacts(Document):
    """How far the history reaches."""

    keep_ms: int
    max: int
    since_ms: int


class PastList(Document):
    """One page of the history."""

    messages: list[PastMessage]
    next: str | None
    looked_at: int
    now_ms: int
    text: str = Field(default="", description="why there are none")
    history: HistoryFacts


class Body(Document):
    """The body of a message: text, or base64 where it is not UTF-8; neither where it is hidden or no longer there."""

    size: int | None = Field(description="bytes of the whole body")
    text: str | None = Field(default=None, description="where it is UTF-8")
    base64: str | None = Field(default=None, description="where it is not UTF-8")
    truncated: bool = Field(default=False, description="whether only the first bytes are here")
    hidden: str = Field(default="", description="why it is not shown")

    @property
    def raw(self) -> bytes:
        """The bytes that are shown."""
        return b64decode(self.base64) if self.base64 else (self.text or "").encode()


class OpenedFacts(Document):
    """The properties of a message in their order: all of them, and those that do not say where it was published."""

    properties: dict[str, Any]
    other: dict[str, Any]


class MessageDetails(Document):
    """A message with all that is known of it."""

    message: MessageFacts
    properties: dict[str, Any] | None = Field(description="null: not kept after the message left the store")
    headers: dict[str, Any] | None = Field(description="null: not kept after the message left the store")
    origin: dict[str, Any] = Field(default={}, description="where it was published")
    opened: OpenedFacts | None = Field(default=None, description="for `postdate show`, if the caller sees everything")
    body: Body
    life: list[LifeEvent]
    commands: dict[str, str] = Field(description="the same as commands of postdate")
    now_ms: int | None = None


class MessageLife(Document):
    """The moments of a message, and what became of it if it has left the store."""

    id: str = Field(examples=[ID])
    state: str
    life: list[LifeEvent]
    text: str = ""


class VerbResult(Document):
    """What a verb did to a message. State gone: what was made due now has left the store already."""

    id: str = Field(examples=[ID])
    state: str = Field(
        description="what it is now: parked, claimed, dead, gone, cancelled, ... or none for an unknown id"
    )
    due: str | None = Field(default=None, description="RFC 3339")
    due_ms: int | None = Field(default=None, description="Unix milliseconds")
    text: str = Field(default="", description="why nothing was done, or a remark")
    code: int = Field(default=0, description="the exit code of a command: 0, 3 not found, 5 refused")
    at: str | None = Field(default=None, description="refused: when it left the store")
    at_ms: int | None = Field(default=None, description="the same, Unix milliseconds")
    lease_until: str | None = Field(default=None, description="refused, because it is being sent: when its lease ends")


class VerbResults(Document):
    """What a verb did to several messages."""

    results: list[VerbResult]


class Scheduled(Document):
    """A message that was parked."""

    id: str = Field(examples=[ID])
    due: str = Field(description="RFC 3339")
    due_ms: int = Field(description="Unix milliseconds")


class SearchResult(Document):
    """What a search found."""

    found: list[MessageFacts]
    text: str = Field(description='"", "not seen in the last 24 h", or that too many messages have the key')
    now_ms: int | None = None


class RestoreCounts(Document):
    """Messages of a restore, by what became of them."""

    parked: int
    dead: int = Field(description="dead letters that are dead letters again")
    there: int = Field(description="Redis has them")
    key_taken: int = Field(description="a younger message has their key")
    overdue_skipped: int
    overdue: int = Field(description="parked, and due at once")


class RestorePreview(Document):
    """What a restore would do."""

    count: int = Field(description="messages that would come back")
    complete: bool = Field(description="false: there are more; counting them all would take too long")
    counts: RestoreCounts
    now_ms: int


class OperationFacts(Document):
    """A bulk operation."""

    id: str = Field(description="for GET and DELETE /operations/ID")
    verb: str = Field(description="cancel, reschedule, deliver, retry or restore")
    what: str = Field(default="", description="the filter, or how many ids")
    state: Literal["running", "done", "stopped", "failed"] = Field(
        description="stopped: by a person, or its process ended"
    )
    done: int = Field(description="messages that were changed")
    skipped: int = Field(description="messages that were left alone")
    total: int | None = Field(description="messages to act on; null where they are not counted")
    started_ms: int = Field(description="Unix milliseconds")
    ended_ms: int | None = Field(description="Unix milliseconds; null while it runs")
    beat_ms: int | None = Field(default=None, description="the last sign of life of its process")
    by: str = Field(description="who, and by which way")
    who: str = Field(default="", description="who ordered it: the name of the token, or its role")
    via: str = Field(default="", description="by which way, such as api or cli")
    reason: str = Field(description="why, as its caller says")
    text: str = Field(description="why it failed or stopped")
    counts: RestoreCounts | None = Field(default=None, description="of a restore")


class OperationList(Document):
    """The latest bulk operations, the newest first."""

    operations: list[OperationFacts]


class DryRun(Document):
    """What a bulk operation would act on."""

    count: int
    complete: bool = Field(description="false: there may be more; counting them all would take too long")
    sample: list[MessageFacts]
    next: str | None = Field(default=None, description="the cursor of the next dry run, which goes on; null at the end")
    now_ms: int


class RouteCounts(Document):
    """The state of a route, and its messages in numbers; null for a route without a store."""

    name: str = Field(description="its name in the settings")
    state: Literal["running", "paused", "draining", "full"] = Field(
        description="what operators ordered, or full (max_parked); served says whether an instance runs it"
    )
    since: str | None = Field(default=None, description="when that was ordered, RFC 3339")
    since_ms: int | None = Field(default=None, description="the same, Unix milliseconds")
    by: str | None = Field(default=None, description="who ordered it, and by which way")
    who: str | None = Field(default=None, description="who ordered it: the name of the token, or its role")
    via: str | None = Field(default=None, description="by which way, such as api or cli")
    reason: str | None = Field(default=None, description="why it was ordered")
    parked: int | None = Field(default=None, description="messages that wait, held and claimed ones included")
    held: int | None = Field(default=None, description="due messages of a route that is paused or at its max_rate")
    dead: int | None = Field(default=None, description="dead letters")
    refused: int | None = Field(default=None, description="messages that the broker refused, before their next try")
    cold: int | None = Field(default=None, description="of those that wait, messages that only the journal has")
    overdue: int | None = Field(default=None, description="messages that are due and neither held nor claimed")
    oldest_overdue_ms: int | None = Field(default=None, description="for how long the oldest of them has been due")
    oldest_held_ms: int | None = Field(default=None, description="for how long the oldest held message has been due")
    next_due: str | None = Field(default=None, description="when the next message is due, RFC 3339")
    next_due_ms: int | None = Field(default=None, description="the same, Unix milliseconds")


class RouteFacts(RouteCounts):
    """A route."""

    kind: str = Field(description="delay or retry")
    broker: str = Field(description="rabbitmq or kafka")
    intercept: str = Field(description="of a retry route of RabbitMQ: the queue of its consumers")
    deliver_to: str | list[str] = Field(description="where postdate publishes: an exchange, topic or queue")
    mode: str = Field(description="where messages wait: redis, levels, ladder or native")
    max_rate: float | None = Field(default=None, description="messages per second; null without a limit")
    received_per_s: float | None = Field(
        default=None,
        description="received by all instances, over 10 s; a route without a store: by the processes beside this API",
    )
    delivered_per_s: float | None = Field(
        default=None,
        description="delivered by all instances, over 10 s; a route without a store: by the processes beside this API",
    )
    served: bool | None = Field(description="whether a running instance serves it; null where that is not known")
    broker_away: bool = Field(
        default=False, description="whether its instances report that the broker is not connected"
    )
    idle_since_ms: int | None = Field(
        default=None,
        description="since when no running instance takes anything in, while a silent one may hold the intake",
    )
    unconfirmed: bool = Field(
        default=False, description="whether an instance that serves it waits for the broker's answers too long"
    )


class Routes(Document):
    """All routes."""

    routes: list[RouteFacts]


class MemoryFacts(Document):
    """The memory of one server of the store, in bytes; ``max`` is null without a limit."""

    server: str = Field(description="its address; Redis for a single one")
    used: int = Field(description="bytes")
    max: int | None = Field(description="bytes (maxmemory)")


class StatsFacts(Document):
    """The store and the instances in numbers, and the verdict on them."""

    well: bool = Field(description="whether all is well")
    sentence: str = Field(description="the verdict, as /readyz and the page show it")
    now: str = Field(description="the store's clock, RFC 3339")
    parked: int = Field(description="messages that wait, held and claimed ones included")
    held: int = Field(description="due messages of routes that are paused or at their max_rate")
    claimed: int = Field(description="messages that are being sent")
    dead: int = Field(description="dead letters")
    overdue: int = Field(
        description="due messages that are not held, with those that wait too long for a confirm; 0 while the oldest "
        "has been due for less than a second"
    )
    unconfirmed: int = Field(default=0, description="of the overdue messages, claimed ones, which no route counts")
    refused_waiting: int = Field(description="messages that the broker refused, before their next try")
    cold: int = Field(default=0, description="of those that wait, messages that only the journal has")
    oldest_overdue_ms: int = Field(description="for how long the oldest of them has been due; 0 for none")
    next_due: str | None = Field(description="when the next message is due, RFC 3339")
    ever: dict[str, int] = Field(description="messages since the store was first used, by what became of them")
    memory: list[MemoryFacts] = Field(description="of each server that holds data")
    bytes_per_message: int | None = Field(description="an estimate, in Redis")
    refuses_writes: bool = Field(default=False, description="Redis takes no writes, so instances cannot report")
    warnings: list[str] = Field(description="sentences without a full stop")
    troubles: list[str] = Field(default=[], description="of the warnings, those that the verdict calls a trouble")
    routes: list[RouteCounts] = Field(description="routes with messages or an order")
    instances: list[dict[str, Any]] = Field(description="the report of each running instance")
    silent: dict[str, int] = Field(default={}, description="by instance that no longer reports: for how long (ms)")
    without_store: list[str] = Field(default=[], description="routes that have no counts here")


class AuditFacts(Document):
    """Something that a person did."""

    who: str
    via: str
    verb: str
    what: str
    messages: int
    reason: str
    id: str
    at_ms: int
    at: str


class AuditList(Document):
    """A page of the audit log, the newest entry first."""

    audit: list[AuditFacts]
    next: str | None = Field(description="the id to ask for entries before; null at the end")


class LevelFacts(Document):
    """A queue or topic in which messages wait without a store."""

    route: str
    kind: str
    name: str
    messages: int | None
    state: str
    text: str
    is_dead: bool
    uncounted: bool
