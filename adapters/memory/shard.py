"""One shard in memory. Each move of ``bridge.core.state`` is a method of the same name.

The methods change the state of a message only through ``Shard._move``, which asks the table. The Lua file of the same
name has the comments that explain a move.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adapters.memory.indexes import DueSet, KeyIndex, Offsets
from bridge.core.journal import StoreMove, TierMoved, Written
from bridge.core.message import Claim
from bridge.core.orders import HELD_MS
from bridge.core.ports import FIRST_HELD, Batch, DeadBatch, HeldStep, LetGo, Parked
from bridge.core.state import Guard, State, follow
from bridge.parking.envelope import (
    VERSION,
    contents,
    due_in,
    index_field,
    plain_key,
    route_in,
    tries_and_reached,
)
from bridge.parking.history import NO_HISTORY, HistoryLimits, HistoryRow, PastState
from bridge.parking.identity import ID_BYTES

_DUE_AND_TRIES = struct.Struct(">QH")
_ENTRY_BYTES = 28
#: The recent list is trimmed with every eighth piece.
_TRIM_EVERY = 8
#: How long the store remembers a park or reject token.
TOKEN_MS = 3_600_000
#: How long a name holds others up after its moment.
_LINE_KEPT_MS = 60_000


def _with(envelope: bytes, due_ms: int | None, tries: int | None) -> bytes:
    """Return the envelope with another due moment and number of tries. None keeps either.

    An envelope of an unknown version is returned as it is.
    """
    if len(envelope) < 11 or envelope[0] != VERSION:
        return envelope
    old_due_ms, old_tries = _DUE_AND_TRIES.unpack_from(envelope, 1)
    head = _DUE_AND_TRIES.pack(old_due_ms if due_ms is None else due_ms, old_tries if tries is None else tries)
    return envelope[:1] + head + envelope[11:]


def refused_member(message_id: bytes, envelope: bytes) -> bytes:
    """Return a message as ``lua/include/refused.lua`` writes it."""
    return route_in(envelope) + b"\0" + due_in(envelope).to_bytes(8, "big") + message_id


def field_of(envelope: bytes) -> bytes | None:
    """Return the field of the key index; None without a key."""
    opened = contents(envelope)
    return index_field(opened.route.encode(), opened.key) if opened.key else None


class Taken(NamedTuple):
    """What ``claim`` took: envelopes by id, in order, and how many ids had no envelope."""

    messages: dict[bytes, bytes]
    ghosts: int


class _Seen(NamedTuple):
    """The token of a call, how long it is remembered, and the reply."""

    token: bytes
    until_ms: int
    reply: Parked


@dataclass
class Shard:
    """``now_ms`` is the store's clock. ``wake(due_ms)`` is called when the shard's next due moment comes nearer.

    ``claimed`` has the end of each lease, by id and token. ``dead`` has the moment of each death.
    """

    now_ms: Callable[[], int]
    wake: Callable[[int], None]
    due: DueSet = field(default_factory=DueSet)
    messages: dict[bytes, bytes] = field(default_factory=dict)
    claimed: dict[bytes, int] = field(default_factory=dict)
    dead: dict[bytes, int] = field(default_factory=dict)
    why: dict[bytes, str] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    keys: KeyIndex = field(default_factory=KeyIndex)
    recent: list[bytes] = field(default_factory=list)
    offsets: Offsets = field(default_factory=Offsets)
    counts: Counter[str] = field(default_factory=Counter)
    #: By state (parked, held, dead) and route, as ``lua/include/routes.lua``.
    routes: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    drain: tuple[str, int] = ("", 0)
    limits: HistoryLimits = NO_HISTORY
    history: list[HistoryRow] = field(default_factory=list)
    lines: dict[bytes, int] = field(default_factory=dict)
    #: The log for the journal; None while no instance reads it.
    moved: list[StoreMove] | None = None
    #: Changes with every step between the tiers; b"" before there is a cold tier.
    mark: bytes = b""
    parks: list[StoreMove] | None = None
    _moves: int = 0
    _seen: dict[tuple[str, str], _Seen] = field(default_factory=dict)

    # -- parking ----------------------------------------------------------------------------------------------------

    def park(self, caller: str, batch: Batch) -> Parked:
        """new -> parked."""
        seen = self._seen.get(("park", caller))
        if seen is not None and seen.token == batch.token and self.now_ms() < seen.until_ms:
            return seen.reply
        if batch.mark and batch.mark != self.mark:
            raise TierMoved("a message changed its tier meanwhile")
        self._begin_logs(batch.logs)
        before = self._before(batch)
        kept: list[int] = []
        rejected: list[int] = []
        done = {*before, *self._there(batch)}
        keyed = {entry.position for entry in batch.keyed}
        for position, key, mode in batch.keyed:
            message = batch.messages[position - 1]
            if position in done:
                continue
            if not self._older_stays(key, mode):
                self._park(*message)
                self.keys.add(key, [message[0]])
            else:
                (kept if mode == "keep" else rejected).append(position)
        for position, message in enumerate(batch.messages, 1):
            if position not in keyed and position not in done:
                self._park(*message)
        self._find_by(batch.found, {batch.messages[position - 1][0] for position in done})
        self._remember(batch.recent, batch.recent_max)
        for position in rejected if batch.origins else ():
            self.offsets.note(batch.origins[position - 1], owed=True)
        self.counts["parked"] += len(batch.messages) - len(kept) - len(rejected) - len(done)
        reply = Parked(tuple(kept), tuple(rejected), tuple(before))
        for position, message in enumerate(batch.messages if batch.once and batch.logs else (), 1):
            if position not in {*kept, *rejected, *before}:
                self._log("restored", Written.WAITING, message[0])
        self._seen["park", caller] = _Seen(batch.token, self.now_ms() + TOKEN_MS, reply)
        self._wake_if_nearer(due_ms for _, due_ms, _ in batch.messages)
        return reply

    def _begin_logs(self, logs: int) -> None:
        for parks in (False, True)[:logs]:
            self.log(parks)

    def log(self, parks: bool) -> list[StoreMove]:
        """Return the log of what was parked, or of moves. One that is missing begins."""
        if parks:
            self.parks = self.parks or []
            return self.parks
        self.moved = self.moved or []
        return self.moved

    def _before(self, batch: Batch) -> list[int]:
        """Return the positions of messages that were handled before. Mark the others as handled."""
        verdicts = self.offsets.new((*batch.origins, *batch.owed))
        fresh = [origin for origin, new in zip((*batch.origins, *batch.owed), verdicts, strict=True) if new]
        self.offsets.firsts = dict(sorted(fresh, reverse=True)) | self.offsets.firsts
        for n, (origin, new) in enumerate(zip((*batch.origins, *batch.owed), verdicts, strict=True)):
            if new:
                self.offsets.note(origin, owed=n >= len(batch.origins))
        passed = [position for position, new in enumerate(verdicts[: len(batch.origins)], 1) if not new]
        return sorted({*passed, *(self._there(batch) if batch.once else ())})

    def _there(self, batch: Batch) -> list[int]:
        numbered = enumerate(batch.messages, 1) if batch.once or batch.again else ()
        return [position for position, message in numbered if message[0] in self.messages]

    def _find_by(self, found: Mapping[bytes, bytes], passed: set[bytes]) -> None:
        for key, ids in found.items():
            split = (ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))
            if added := [message_id for message_id in split if message_id not in passed]:
                self.keys.add(key, added)

    def _older_stays(self, key: bytes, mode: str) -> bool:
        waiting = [message_id for message_id in self.keys.found(key).ids if message_id in self.due]
        if mode != "replace":
            return bool(waiting)
        for message_id in waiting:
            route = key.partition(b"\0")[0]
            self._count_out("parked", message_id, route)
            self._note(PastState.REPLACED, message_id)
            self._log("replaced", Written.REPLACED, message_id)
            self._move("cancel", message_id, Guard.ASKED)
            self.keys.remove(key, message_id)
            self.counts["replaced"] += 1
        return False

    def _park(self, message_id: bytes, due_ms: int, envelope: bytes) -> None:
        self._move("park", message_id, Guard.UNSEEN, due_ms)
        self.messages[message_id] = envelope
        self._route_add("parked", route_in(envelope), 1)
        self._log("parked", None, message_id, parks=True)

    def _remember(self, piece: bytes, most: int) -> None:
        if not piece:
            return
        self.recent.append(piece)
        if len(self.recent) % _TRIM_EVERY == 0 or not most:
            while self.recent and (sum(map(len, self.recent)) - len(self.recent[0])) // _ENTRY_BYTES >= most:
                del self.recent[0]

    def reject(self, instance: str, dead: DeadBatch) -> tuple[int, ...]:
        """new -> dead."""
        token, messages, origins, restored = dead
        seen = self._seen.get(("reject", instance))
        if seen is not None and seen.token == token and self.now_ms() < seen.until_ms:
            return seen.reply.before
        new = self.offsets.new(origins) if origins else [True] * len(messages)
        new = [is_new and message[0] not in self.messages for is_new, message in zip(new, messages, strict=True)]
        for (message_id, envelope, reason), is_new in zip(messages, new, strict=True):
            if is_new:
                self._move("reject", message_id, Guard.UNSEEN, self.now_ms())
                self.messages[message_id] = envelope
                self.why[message_id] = reason
                self._route_add("dead", route_in(envelope), 1)
                if (key := field_of(envelope)) is not None:
                    self.keys.add(key, [message_id])
                self._note(PastState.DEAD, message_id, reason)
                self._log("dead", Written.DEAD, message_id, reason=reason)
                self._log("parked", None, message_id, parks=True)
                for name in ("restored",) if restored else ("dead", "rejected"):
                    self.counts[name] += 1
        for origin in origins:
            self.offsets.note(origin)
        before = tuple(position for position, is_new in enumerate(new, 1) if not is_new)
        self._seen["reject", instance] = _Seen(token, self.now_ms() + TOKEN_MS, Parked((), (), before))
        return before

    # -- delivering ------------------------------------------------------------------------------------------------

    def owner(self, instance: str, drain_ms: int) -> str | None:
        """Return the other instance that drains this shard. None: from now on the caller drains it."""
        name, until_ms = self.drain
        if name not in ("", instance) and self.now_ms() < until_ms:
            return name
        self.drain = (instance, self.now_ms() + drain_ms)
        return None

    def claim(self, token: bytes, lease_ms: int, limit: int, bytes_max: int, ahead_ms: int = 0) -> Taken:
        """parked -> claimed."""
        taken: dict[bytes, bytes] = {}
        ghosts, bytes_left = 0, bytes_max
        for n, message_id in enumerate(self.due.until(self.now_ms() + ahead_ms, limit)):
            envelope = self.messages.get(message_id)
            if envelope is None:  # deleted by hand: there is no message to move
                self.due.remove(message_id)
                ghosts += 1
            elif n and len(envelope) > bytes_left:
                break
            else:
                bytes_left -= len(envelope)
                self._move("claim", message_id, Guard.DUE, self.now_ms() + lease_ms, message_id + token)
                taken[message_id] = envelope
        return Taken(taken, ghosts)

    def renew(self, claim: Claim, lease_ms: int) -> bool:
        """claimed -> claimed."""
        if (member := claim.id + claim.token) not in self.claimed:
            return False
        self._move("renew", claim.id, Guard.LEASED, self.now_ms() + lease_ms, member)
        return True

    def settle(self, claim: Claim) -> bool:
        """claimed -> gone."""
        if (member := claim.id + claim.token) not in self.claimed:
            return False
        route = claim.route.encode()
        self._route_add("parked", route, -1)
        self._try_no_more(claim.id)
        self._move("settle", claim.id, Guard.LEASED, member=member)
        self._log("delivered", Written.DELIVERED, claim.id)
        if claim.key:
            self.keys.remove(index_field(route, claim.key), claim.id)
        self.counts["delivered"] += 1
        return True

    def release(self, claim: Claim, wait_ms: int | None, tries: int, reason: str) -> bool:
        """claimed -> parked."""
        if not self._holds(member := claim.id + claim.token):
            return False
        envelope = self.messages[claim.id]
        due_ms = due_in(envelope) if wait_ms is None else self.now_ms() + wait_ms
        self._move("release", claim.id, Guard.LEASED, due_ms, member)
        self.messages[claim.id] = _with(envelope, None, tries_and_reached(tries, claim.reached))
        if reason:
            self._refuse(claim.id, envelope, reason)
        self._wake_if_nearer([due_ms])
        return True

    def hold(self, claim: Claim, reason: str | None) -> bool:
        """claimed -> held."""
        if not self._holds(member := claim.id + claim.token):
            return False
        envelope = self.messages[claim.id]
        self._move("hold", claim.id, Guard.LEASED, HELD_MS + due_in(envelope), member)
        self._route_add("held", route_in(envelope), 1)
        if reason:
            self._refuse(claim.id, envelope, reason)
        elif reason is not None:
            self._try_no_more(claim.id)
        return True

    def let_go(self, instance: str, step: HeldStep, limit: int, gap_us: int) -> LetGo:
        """held -> parked."""
        name, until_ms = self.drain
        if name not in ("", instance) and self.now_ms() < until_ms:
            return LetGo(False, 0, None, FIRST_HELD, False, frozenset())
        left = Counter({route.encode(): most for route, most in step.most.items()})
        room = step.others or left.total() > 0
        held = [place for place in self.due.held() if place > step.after][:limit] if room else []
        last, before, paced, moments = step.after, (0, b""), 0, list[int]()
        ended = False
        for due_ms, message_id in held:
            if not step.others and not left.total():
                break
            last, route = (due_ms, message_id), route_in(self.messages.get(message_id, b""))
            if not left.get(route, step.others):
                continue
            to_ms = due_ms
            if route in left:
                to_ms = max(due_ms, self.now_ms() + paced * gap_us // 1000, before[0] + (message_id < before[1]))
                left[route], before, paced = left[route] - 1, (to_ms, message_id), paced + 1
            moments.append(to_ms)
            self._move("let_go", message_id, Guard.DRAINED, to_ms)
            self._route_add("held", route, -1)
        else:
            ended = room and len(held) < limit
        rest = frozenset(route.decode() for state, route in self.routes if state == "held")
        return LetGo(True, len(moments), moments[0] if moments else None, last, ended, rest)

    def bury(self, claim: Claim, reason: str) -> bool:
        """claimed -> dead."""
        if not self._holds(member := claim.id + claim.token):
            return False
        self._move("bury", claim.id, Guard.LEASED, self.now_ms(), member)
        self._try_no_more(claim.id)
        tries = tries_and_reached(claim.tries, claim.reached)
        self.messages[claim.id] = _with(self.messages[claim.id], None, tries)
        self.why[claim.id] = reason
        route = route_in(self.messages[claim.id])
        self._route_add("parked", route, -1)
        self._route_add("dead", route, 1)
        self._note(PastState.DEAD, claim.id, reason)
        self._log("dead", Written.DEAD, claim.id, reason=reason)
        self.counts["dead"] += 1
        return True

    def recover(self, lease_ms: int, lost: tuple[bytes, bytes] | None = None) -> int:
        """claimed -> parked, for expired leases; or for the claims of one process from the first to the last token."""
        if lost is not None:
            first, last = lost
            members = [member for member in self.claimed if first <= member[ID_BYTES:] <= last]
        else:
            members = [member for member, ends_ms in self.claimed.items() if ends_ms <= self.now_ms()]
            latest_ms = self.now_ms() + lease_ms
            if self.drain[1] > latest_ms:
                self.drain = ("", 0)
            self.claimed |= {member: latest_ms for member, ends_ms in self.claimed.items() if ends_ms > latest_ms}
        dues_ms = []
        for member in filter(self._holds, members):
            dues_ms.append(due_in(self.messages[member[:ID_BYTES]]))
            self._move("recover", member[:ID_BYTES], Guard.LAPSED, dues_ms[-1], member)
        self.counts["recovered"] += len(dues_ms)
        self.refused = {entry for entry in self.refused if entry[-ID_BYTES:] in self.messages}
        self._wake_if_nearer(dues_ms)
        return len(dues_ms)

    # -- by hand ----------------------------------------------------------------------------------------------------

    def retry(self, message_id: bytes) -> bool:
        """dead -> parked, due at once."""
        if self.word(message_id) != "dead":
            return False
        self._move("retry", message_id, Guard.ASKED, self.now_ms())
        envelope = self.messages[message_id]
        self.messages[message_id] = _with(envelope, self.now_ms(), tries_and_reached(0, contents(envelope).reached))
        self.why.pop(message_id, None)
        route = route_in(self.messages[message_id])
        self._route_add("dead", route, -1)
        self._route_add("parked", route, 1)
        self._log("retried", Written.WAITING, message_id, self.now_ms())
        self._wake_if_nearer([self.now_ms()])
        return True

    def cancel(self, message_id: bytes, dead_too: bool, replaced: bool = False, reason: str = "") -> str:
        """parked, held or dead -> gone. Return what the message was: a held one counts as parked."""
        word = self.word(message_id)
        if word == "parked" or (word == "dead" and dead_too):
            key = field_of(self.messages[message_id])
            self._count_out(word, message_id, route_in(self.messages[message_id]))
            self._note(PastState.REPLACED if replaced else PastState.CANCELLED, message_id, reason)
            self._move("cancel", message_id, Guard.ASKED)
            became = Written.REPLACED if replaced else Written.CANCELLED
            self._log(became.name.lower(), became, message_id, reason=reason)
            if key is not None:
                self.keys.remove(key, message_id)
            self.counts["cancelled"] += 1
        return word

    def reschedule(self, message_id: bytes, due_ms: int) -> str:
        """parked -> parked, and held -> held, at another moment (0: now)."""
        word = self.word(message_id)
        if word == "parked":
            moment_ms = due_ms or self.now_ms()
            held_ms = HELD_MS if self.due.at_ms(message_id) >= HELD_MS else 0
            self._try_no_more(message_id)
            self._move("reschedule", message_id, Guard.ASKED, held_ms + moment_ms)
            self.messages[message_id] = _with(self.messages[message_id], moment_ms, None)
            self._log("rescheduled", None, message_id, moment_ms)
            self._wake_if_nearer([moment_ms])
        return word

    def hand_over(self, instance: str) -> bool:
        """Stop draining this shard. Return whether this instance drained it."""
        if self.drain[0] != instance or self.now_ms() >= self.drain[1]:
            return False
        self.drain = ("", 0)
        self.wake(0)
        return True

    def line_up(self, named: Sequence[tuple[bytes, int]]) -> list[int]:
        """Return the due moments of messages that wait for earlier ones with the same name."""
        past_ms = min([self.now_ms(), *(due_ms for _, due_ms in named)]) - _LINE_KEPT_MS
        self.lines = {name: due_ms for name, due_ms in self.lines.items() if due_ms > past_ms}
        found = []
        for name, due_ms in named:
            self.lines[name] = max(due_ms, self.lines.get(name, 0))
            found.append(self.lines[name])
        return found

    # -- the history ------------------------------------------------------------------------------------------------

    def record(self, rows: Sequence[HistoryRow], most: int) -> int:
        """Add entries, and keep the last ``most``. Return how many are kept."""
        if self.limits.most:
            self.history += rows
            oldest_ms = self.now_ms() - self.limits.keep_ms
            self.history = [row for row in self.history if row.ended_ms >= oldest_ms][-most:]
        return len(self.history)

    def _note(self, state: PastState, message_id: bytes, reason: str = "") -> None:
        envelope = self.messages[message_id]
        opened = contents(envelope)
        row = HistoryRow(
            message_id,
            opened.route,
            plain_key(opened.key),
            state,
            opened.arrived_ms,
            due_in(envelope),
            None,
            None,
            self.now_ms(),
            opened.tries,
            len(opened.payload),
            reason,
        )
        self.record([row], self.limits.most)

    def pass_by(self, place: int) -> None:
        """Let later moves have higher places."""
        self._begin_logs(1)
        self._moves = max(self._moves, place)

    def _log(
        self,
        name: str,
        state: Written | None,
        message_id: bytes,
        due_ms: int | None = None,
        reason: str = "",
        parks: bool = False,
    ) -> None:
        """Write a move for the journal."""
        log = self.parks if parks else self.moved
        if log is not None:
            self._moves = max(self._moves + 1, self.now_ms() << 20)  # later than those of a store before this
            at_ms = self._moves >> 20  # as in Redis, which keeps the moment after a step back of its clock
            log.append(StoreMove([message_id], self._moves, at_ms, name, state, due_ms, "", reason))

    # -- pieces -----------------------------------------------------------------------------------------------------

    def word(self, message_id: bytes) -> str:
        """Return parked (or held), dead, claimed or none."""
        if message_id not in self.messages:
            return "none"
        state = self._state(message_id)
        return State.PARKED.value if state is State.HELD else state.value

    def _state(self, message_id: bytes, member: bytes = b"") -> State:
        if member in self.claimed:
            return State.CLAIMED
        if message_id in self.due:
            return State.HELD if self.due.at_ms(message_id) >= HELD_MS else State.PARKED
        if message_id in self.dead:
            return State.DEAD
        return State.CLAIMED if message_id in self.messages else State.NEW

    def _move(self, name: str, message_id: bytes, checked: Guard, at_ms: int = 0, member: bytes = b"") -> None:
        """Make one move of the table. Raises ``IllegalMove`` if the table has no such move from this state.

        ``at_ms`` is the due moment, the end of the lease or the moment of death. ``member`` names the claim.
        """
        before = self._state(message_id, member)
        after = follow(name, before, checked)
        match before:
            case State.PARKED | State.HELD:
                self.due.remove(message_id)
            case State.CLAIMED:
                del self.claimed[member]
            case State.DEAD:
                del self.dead[message_id]
        match after:
            case State.PARKED | State.HELD:
                self.due.put(message_id, at_ms)
            case State.CLAIMED:
                self.claimed[member] = at_ms
            case State.DEAD:
                self.dead[message_id] = at_ms
            case State.GONE:
                self.messages.pop(message_id, None)
                self.why.pop(message_id, None)

    def _route_add(self, state: str, route: bytes, number: int) -> None:
        """Count messages of a route. No count falls below 0: a message deleted by hand was never counted out."""
        left = self.routes[state, route] + number
        if left > 0:
            self.routes[state, route] = left
        else:
            del self.routes[state, route]

    def _count_out(self, state: str, message_id: bytes, route: bytes) -> None:
        """Count a message out that is about to go."""
        self._route_add(state, route, -1)
        self._try_no_more(message_id)
        if self.due.at_ms(message_id) >= HELD_MS:
            self._route_add("held", route, -1)

    def _try_no_more(self, message_id: bytes) -> None:
        """A message that may have been refused waits for no other try."""
        self.refused.discard(refused_member(message_id, self.messages.get(message_id, b"")))

    def _refuse(self, message_id: bytes, envelope: bytes, reason: str) -> None:
        self.why[message_id] = reason
        self.refused.add(refused_member(message_id, envelope))

    def _holds(self, member: bytes) -> bool:
        """Return whether this claim holds a message. A claim whose message was deleted by hand is dropped."""
        if member in self.claimed and member[:ID_BYTES] not in self.messages:
            del self.claimed[member]
        return member in self.claimed

    def _wake_if_nearer(self, dues_ms: Iterable[int]) -> None:
        earliest_ms, head_ms = min(dues_ms, default=None), self.due.head_ms()
        if earliest_ms is not None and head_ms is not None and head_ms >= earliest_ms:
            self.wake(head_ms)
