"""Turns a letter into the frames of a publish: the producer's message without the delay, with the audit headers. Pure.

What this file drops and adds is the only difference between what the producer sent and what the consumer receives. The
deploy/headers.md has the same list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from adapters.rabbitmq.failure import FailingQueue, read_rejected, retry_entries
from adapters.rabbitmq.raw import frames
from adapters.rabbitmq.raw.expiration import expiration_of, with_expiration
from adapters.rabbitmq.raw.fields import long_entry, negated_entry, text_entry
from adapters.rabbitmq.raw.payload import unpack
from adapters.rabbitmq.raw.properties import TooManyEntries, alike, edit, header_field, read
from adapters.rabbitmq.refusals import headers_too_large, loop, too_large
from bridge.core.message import Refusal
from bridge.core.ports import Letter
from bridge.core.reasons import bad_headers
from bridge.delay.seal import Seal
from bridge.delay.trust import no_such_queue

_ID = b"x-delay-id"
_DUE = b"x-delay-due"
#: Dropped before they are added: otherwise a message that a consumer forwards with its headers would have them twice.
AUDIT_HEADERS = frozenset({_ID, _DUE})
_DELAY = b"x-delay"
_PLUGIN = frozenset({_DELAY})


@dataclass(frozen=True)
class Returning:
    """How messages that failed leave. ``last`` gets those that failed more often than the schedule has ``waits``; where
    it is None, only an operator's retry brings such a message here.

    ``restores`` the expiration that RabbitMQ took off. Not for ``last``: RabbitMQ takes it off so that a dead letter
    does not expire in the queue that keeps it. ``seal`` signs the state of what returns.
    """

    failing: FailingQueue
    seal: Seal | None = None
    waits: int = 0
    last: Out | None = None
    restores: bool = True


@dataclass(frozen=True)
class Out:
    """How a route's messages leave: to which exchange, without which headers, with which additions.

    ``loops`` matches routing keys that would lead back to postdate; None where none does. ``queues`` are the only
    allowed routing keys; None for any. Both are checked again here, because the settings may have changed since the
    intake. ``entries_max`` bounds the header entries of a message; None for no bound. ``returning`` is set on retry
    routes.
    """

    exchange: str
    drop: frozenset[bytes]
    drop_user_id: bool
    audit: bool
    plugin: bool
    loops: re.Pattern[bytes] | None = None
    queues: frozenset[bytes] | None = None
    entries_max: int | None = None
    returning: Returning | None = None


def chosen(letter: Letter, out: Out) -> Out:
    """Return how this one message leaves. Raises ``ValueError`` for a damaged payload."""
    returning = out.returning
    if returning is None or returning.last is None:
        return out
    failure = read_rejected(unpack(letter.payload).properties, returning.failing, out.entries_max).failure
    return returning.last if failure.attempt > returning.waits else out


class Encoder:
    """Encodes letters for one channel. ``size_max`` comes from the broker's refusals."""

    def __init__(self, channel: int, frame_max: int) -> None:
        self._channel = channel
        self._frame_max = frame_max
        self._methods: dict[tuple[str, bytes], bytes] = {}
        self.size_max: int | None = None

    def encode(self, letter: Letter, out: Out) -> bytes | Refusal:
        """Return the frames, or the refusal that the broker would give. Raises ``ValueError`` for a damaged payload."""
        routing_key, properties, body = unpack(letter.payload)
        if out.loops is not None and out.loops.fullmatch(routing_key):
            return loop(routing_key)
        if out.queues is not None and routing_key not in out.queues:
            return Refusal(no_such_queue(routing_key), lasting=True)
        if self.size_max is not None and len(body) > self.size_max:
            return too_large(len(body), self.size_max)
        try:
            edited = self._edited(letter, properties, out)
        except TooManyEntries as error:  # a retried dead letter, or a limit that is lower now
            return Refusal(bad_headers(str(error)), lasting=True)
        if edited is None:
            return headers_too_large(self._frame_max)
        method = self._methods.get((out.exchange, routing_key))
        if method is None:
            method = frames.publish_method(self._channel, out.exchange.encode(), routing_key)
            if len(self._methods) >= 10_000:
                self._methods.clear()
            self._methods[out.exchange, routing_key] = method
        return method + frames.content(self._channel, edited, body, self._frame_max)

    def _edited(self, letter: Letter, properties: bytes, out: Out) -> bytes | None:
        most, needed = out.entries_max, b""
        if out.returning is not None:
            failure, _, expiration, _ = read_rejected(properties, out.returning.failing, most)
            seal = out.returning.seal  # without these headers the schedule would start over
            needed = retry_entries(failure, letter.arrived_ms, letter.public_id, seal)
            if expiration and out.returning.restores and expiration_of(properties) is None:
                properties = with_expiration(properties, expiration)
        edited = edit(properties, out.drop, out.drop_user_id, _additions(letter, properties, out) + needed, most)
        if not frames.header_fits(edited, self._frame_max):
            edited = edit(properties, out.drop, out.drop_user_id, needed, most)
        return edited if frames.header_fits(edited, self._frame_max) else None

    def is_this(self, letter: Letter, out: Out, properties: bytes, body: bytes) -> bool:
        """Return whether a returned message was made from this letter."""
        _, given, own_body = unpack(letter.payload)
        return own_body == body and alike(self._edited(letter, given, out) or b"", properties)


def _additions(letter: Letter, properties: bytes, out: Out) -> bytes:
    added = b""
    if out.audit:
        added = text_entry(_ID, letter.public_id) + long_entry(_DUE, letter.due_ms)
    if out.plugin:
        given = read(properties, _PLUGIN, entries_max=out.entries_max).headers.get("x-delay")
        whole = isinstance(given, int) and not isinstance(given, bool)
        delay_ms = given if whole else max(0, letter.due_ms - letter.arrived_ms)
        assert isinstance(delay_ms, int)
        field = header_field(properties, _DELAY)
        added += negated_entry(_DELAY, delay_ms, field[1] if field else None)
    return added
