"""What operators do to messages: the table of verbs, and for each message its new state, or why nothing was done.

``VERBS`` says which verb changes a message in which state. The commands, the API and bulk operations read it; a test
holds the page to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bridge.core.errors import FINE, NOT_FOUND, REFUSED, NotFound
from bridge.core.orders import RouteState, routes_that
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.delay.trust import is_cancellation
from bridge.desk.protocol import Desk
from bridge.desk.rows import Answer, Row
from bridge.operate.documents import VerbResult
from bridge.operate.where import ended, ends, not_seen
from bridge.parking.history import HistoryRow

#: Why the history says that a message was cancelled, where the operator gave no reason.
BY_OPERATOR = "by an operator"
_UNKNOWN = "no message has this id"
#: By the state of a message: why a verb that does not fit it does nothing.
_REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        State.CLAIMED.value: "it is being sent now. Look again in a few seconds with `postdate show`",
        State.DEAD.value: "it is a dead letter. Use `postdate retry`",
        State.PARKED.value: "it is parked, not dead. `postdate deliver` makes it due now",
    }
)
#: What ``retry`` finds besides the states.
_SPARED = "spared"
_CANCELLATION = (
    "it is a cancellation that was refused, and is never delivered. Delete it with `postdate cancel`, and cancel "
    "the message it meant with `postdate cancel --key KEY`"
)


class NotThere(NotFound):
    """A message is not in the store. ``result`` says what became of it, as far as that is known."""

    def __init__(self, result: VerbResult) -> None:
        super().__init__(result.text)
        self.result = result


VerbName = Literal["cancel", "reschedule", "deliver", "retry"]
#: Acts on messages by (ids, due moment, reason). Returns the state in which it found each one.
Effect = Callable[[Desk, Sequence[bytes], int, str], Awaitable[Mapping[bytes, str]]]


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that operators do to messages.

    It changes those in ``states``, which then are ``becomes``, except those that it ``spares`` by state and reason.
    ``done`` is its word for people, true of one message and of many. ``summary``, ``help`` and ``method`` are those of
    its endpoint: POST for a path with its name. ``counter`` is its metric. ``takes_due``: it needs a due moment.
    """

    name: VerbName
    done: str
    states: tuple[State, ...]
    becomes: State
    effect: Effect
    counter: str
    summary: str
    help: str
    takes_due: bool = False
    method: str = "POST"
    spares: Callable[[str, str], bool] = lambda state, reason: False

    def state_meant(self, reason: str | None) -> State:
        """Return which messages a filter without a state means: with a reason, dead letters where the verb takes
        them."""
        return self.states[-1 if reason else 0]

    def changes(self, row: Row) -> bool:
        """Return whether it changes a message."""
        return row.state in self.states and not self.spares(row.state.value, row.reason)

    async def act(self, desk: Desk, ids: Sequence[bytes], due_ms: int = 0, reason: str = "") -> list[VerbResult]:
        """Act on messages. A ``due_ms`` (Unix ms) of 0 or in the past means now. ``reason`` is for the history."""
        due_ms = due_ms if due_ms and due_ms > await desk.now_ms() else 0
        found = await self.effect(desk, ids, due_ms, reason)
        results = [self._judged(message_id, found[message_id]) for message_id in ids]
        if self.becomes is State.PARKED:
            results = await _read_again(desk, results, not due_ms)
        return await explained(desk, results)

    def _judged(self, message_id: bytes, word: str) -> VerbResult:
        """Return the result for the state that the effect found."""
        if word == _SPARED:
            return _result(message_id, State.DEAD.value, _CANCELLATION, REFUSED)
        if word == Answer.NONE:
            return missing(message_id)
        if State(word) in self.states:
            return _result(message_id, self.done if self.becomes is State.GONE else self.becomes.value)
        return _result(message_id, State(word).value, _REFUSALS[word], REFUSED)


def _result(message_id: bytes, state: str, text: str = "", code: int = FINE) -> VerbResult:
    return VerbResult(id=message_id.decode(), state=state, due=None, due_ms=None, text=text, code=code)


async def _cancel(desk: Desk, ids: Sequence[bytes], due_ms: int, reason: str) -> Mapping[bytes, str]:
    return await desk.cancel(ids, reason or BY_OPERATOR)


async def _reschedule(desk: Desk, ids: Sequence[bytes], due_ms: int, reason: str) -> Mapping[bytes, str]:
    return await desk.reschedule(ids, due_ms)


async def _retry(desk: Desk, ids: Sequence[bytes], due_ms: int, reason: str) -> Mapping[bytes, str]:
    found: dict[bytes, str] = dict.fromkeys(ids, Answer.NONE.value)
    for row in await desk.look(ids, 0):
        found[row.id] = _SPARED if _is_dead_cancellation(row.state.value, row.reason) else row.state.value
    await desk.retry([message_id for message_id in ids if found[message_id] == Answer.DEAD])
    return found


def _is_dead_cancellation(state: str, reason: str) -> bool:
    """Return whether this is a cancellation that was refused: it is never delivered. Pure."""
    return state == State.DEAD.value and is_cancellation(reason)


DELIVER = Verb(
    name="deliver",
    done="due now",
    states=(State.PARKED,),
    becomes=State.PARKED,
    effect=_reschedule,
    counter="delivered_early",
    summary="Deliver a message now",
    help="Make a parked message due now.",
)
RESCHEDULE = Verb(
    name="reschedule",
    done="rescheduled",
    states=(State.PARKED,),
    becomes=State.PARKED,
    effect=_reschedule,
    counter="rescheduled",
    summary="Reschedule a message",
    help="Change when a parked message is due. A time in the past means now.",
    takes_due=True,
    method="PATCH",
)
CANCEL = Verb(
    name="cancel",
    done="cancelled",
    states=(State.PARKED, State.DEAD),
    becomes=State.GONE,
    effect=_cancel,
    counter="cancelled",
    summary="Cancel a message",
    help="Delete a parked message or a dead letter. It is never delivered.",
    method="DELETE",
)
RETRY = Verb(
    name="retry",
    done="retried",
    states=(State.DEAD,),
    becomes=State.PARKED,
    effect=_retry,
    counter="retried",
    summary="Retry a dead letter",
    help="Park a dead letter again, due now, with its full number of tries.",
    spares=_is_dead_cancellation,
)
VERBS = (DELIVER, RESCHEDULE, CANCEL, RETRY)


@dataclass(frozen=True, slots=True)
class RouteVerb:
    """One thing that operators do to routes: it orders ``state``. ``summary`` and ``help`` are words of its endpoint,
    ``text`` of its command."""

    name: str
    state: RouteState
    summary: str
    help: str
    text: str


PAUSE = RouteVerb(
    "pause",
    RouteState.PAUSED,
    "Pause a route",
    "Deliver nothing of this route until it is resumed. Messages go on being parked.",
    """Deliver nothing of these routes until they are resumed. Messages are still taken in and parked.

    The pause outlives restarts. All instances follow within about a second.
    """,
)
RESUME = RouteVerb(
    "resume",
    RouteState.RUNNING,
    "Resume a route",
    "End a pause or a drain. Held messages are delivered now, in their order.",
    "End the pause or drain of these routes. Held messages are delivered now, in their order.",
)
DRAIN = RouteVerb(
    "drain",
    RouteState.DRAINING,
    "Drain a route",
    "Take nothing more in, and deliver what is parked when it is due.",
    """Take nothing more in, and deliver what is parked. New messages of these routes wait in the broker.

    A route is empty when its parked count is 0.
    """,
)
ROUTE_VERBS = (PAUSE, RESUME, DRAIN)


#: What operators do with the journal.
RESTORE = "restore"


def ordering(state: RouteState) -> RouteVerb:
    return next(verb for verb in ROUTE_VERBS if verb.state is state)


def verb_of(name: VerbName) -> Verb:
    return next(verb for verb in VERBS if verb.name == name)


def missing(message_id: bytes) -> VerbResult:
    return _result(message_id, Answer.NONE.value, _UNKNOWN, NOT_FOUND)


async def explained(desk: Desk, results: Sequence[VerbResult]) -> list[VerbResult]:
    """Say why nothing was done: of messages that left the store, what became of them, as far as the history tells; of
    those that are being sent, until when."""
    absent = [result.id.encode() for result in results if result.code == NOT_FOUND]
    if absent:
        known, unknown = await ends(desk, absent), f"{_UNKNOWN}: {await not_seen(desk)}"
        results = [_ended(result, known, unknown) if result.code == NOT_FOUND else result for result in results]
    claimed = [
        result.id.encode() for result in results if result.state == State.CLAIMED.value and result.code == REFUSED
    ]
    if claimed:
        rows = await desk.look(claimed, 0)
        leased = [row for row in rows if row.state is State.CLAIMED and row.at_ms]
        until = {row.id.decode(): {"lease_until": write_moment(row.at_ms)} for row in leased}
        results = [result.model_copy(update=until.get(result.id)) for result in results]
    return list(results)


def _ended(result: VerbResult, known: Mapping[bytes, HistoryRow], unknown: str) -> VerbResult:
    entry = known.get(result.id.encode())
    if entry is None:
        return result.model_copy(update={"text": unknown})
    at = {"at": write_moment(entry.ended_ms), "at_ms": entry.ended_ms}
    return result.model_copy(update={"state": entry.state.value, "text": ended(entry), "code": REFUSED, **at})


async def _read_again(desk: Desk, results: Sequence[VerbResult], due_now: bool) -> list[VerbResult]:
    """Read the changed ones again, so that the result shows what is stored: a message that became due now may be
    claimed or gone by then. One of a paused route waits until that is resumed."""
    changed = [result.id.encode() for result in results if result.code == FINE]
    rows = {row.id.decode(): row for row in await desk.look(changed, 0)}
    paused = routes_that(await desk.orders(), RouteState.PAUSED) if rows and due_now else frozenset()
    return [_as_stored(result, rows.get(result.id), paused) if result.code == FINE else result for result in results]


def _as_stored(result: VerbResult, row: Row | None, paused: Set[str]) -> VerbResult:
    if row is None:
        return result.model_copy(update={"state": State.GONE.value})
    waits = row.state is State.PARKED and row.route in paused
    text = f"route {row.route} is paused, so it waits until `postdate resume {row.route}`" if waits else ""
    due = {"due": write_moment(row.due_ms), "due_ms": row.due_ms}
    return result.model_copy(update={"state": row.state.value, "text": text, **due})
