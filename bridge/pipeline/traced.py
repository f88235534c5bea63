"""A source and a sink that tell a tracer about every message. They wrap the real ones where tracing is on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol

from bridge.core.message import Delivery
from bridge.core.ports import L, Letter, Result, Sink, Source


class MessageTracer(Protocol):
    """What is told of messages. No method raises."""

    def accepted(self, deliveries: Sequence[Delivery]) -> None:
        """These are durable, or rejected, or cancelled something."""

    def publishing(self, letters: Sequence[Letter]) -> None:
        """These are sent now. May change the trace headers in their payloads."""

    def answered(self, results: Sequence[Result[Any]]) -> None:
        """These have an outcome."""


class TracedSource:
    """``Source``, with a tracer."""

    def __init__(self, source: Source, tracer: MessageTracer) -> None:
        self._source = source
        self._tracer = tracer
        self.take, self.more, self.drop, self.alive = source.take, source.more, source.drop, source.alive
        self.place, self.close_intakes = source.place, source.close_intakes
        self.stop, self.emptied = source.stop, source.emptied

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        self._source.accept(deliveries)
        self._tracer.accepted(deliveries)


class TracedSink(Generic[L]):
    """``Sink``, with a tracer."""

    def __init__(self, sink: Sink[L], tracer: MessageTracer) -> None:
        self._sink = sink
        self._tracer = tracer
        self.able, self.open, self.room = sink.able, sink.open, sink.room

    def on_answers(self, answered: Callable[[list[Result[L]]], None]) -> None:
        def both(results: list[Result[L]]) -> None:
            self._tracer.answered(results)
            answered(results)

        self._sink.on_answers(both)

    def publish(self, letters: Sequence[L]) -> None:
        self._tracer.publishing(letters)
        self._sink.publish(letters)


def traced(source: Source, sink: Sink[L], tracer: MessageTracer | None) -> tuple[Source, Sink[L]]:
    """Return source and sink as they are, or with a tracer."""
    return (source, sink) if tracer is None else (TracedSource(source, tracer), TracedSink(sink, tracer))
