"""OpenTelemetry spans for parking and sending. Needs the extra ``otel``: only ``bridge.app.tracing`` imports this file.

A delayed message does not extend its producer's trace, which would last for the whole delay. Each span begins a trace
of its own and is linked to the producer's (OpenTelemetry, semantic conventions for messaging: "links are the default").
The producer's headers are not changed, unless ``propagation`` is "link".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from bridge.core.message import Delivery, Outcome
from bridge.core.ports import Letter, Result

#: Spans of messages that are sent and have no answer. Above it the oldest are forgotten.
_OPEN_MAX = 100_000
_PROPAGATOR = TraceContextTextMapPropagator()


class TraceHeaders(NamedTuple):
    """How a broker's payloads carry the W3C trace headers.

    ``read`` returns those of a payload by name; ``write`` returns the payload with another ``traceparent``, the
    producer's kept as ``x-delay-traceparent``. Both raise ``ValueError`` for a payload that cannot be read.
    """

    read: Callable[[bytes], Mapping[str, str]]
    write: Callable[[bytes, str], bytes]


class Tracer:
    """Makes the spans of one process (``bridge.pipeline.traced.MessageTracer``)."""

    def __init__(
        self,
        system: str,
        places: Mapping[str, tuple[str, str]],
        headers: TraceHeaders,
        rewrite: bool,
        instance: str,
        exporter: SpanExporter | None = None,
    ) -> None:
        """``places`` are intake and destination by route. ``rewrite``: traceparent names the span of the sending.

        The exporter is OTLP over HTTP by default; the OTEL_* variables of the environment configure it.
        """
        resource = Resource.create({SERVICE_NAME: "postdate", "service.instance.id": instance})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("postdate")
        self._system = system
        self._places = places
        self._headers = headers
        self._rewrite = rewrite
        self._open: dict[int, Span] = {}

    def follow(self, places: Mapping[str, tuple[str, str]]) -> None:
        """Know these routes from now on."""
        self._places = places

    def accepted(self, deliveries: Sequence[Delivery]) -> None:
        """Make a span "park" for each delivery, from its arrival to now."""
        for delivery in deliveries:
            place = self._places.get(delivery.route, ("", ""))[0]
            span = self._span(f"park {place}", SpanKind.CONSUMER, delivery.payload, delivery.arrived_ms * 1_000_000)
            span.set_attributes(self._attributes("park", "receive", place, delivery.route))
            span.end()

    def publishing(self, letters: Sequence[Letter]) -> None:
        """Begin a span "send" for each letter. If headers are rewritten, put the span into its payload."""
        for letter in letters:
            place = self._places.get(letter.route, ("", ""))[1]
            span = self._span(f"send {place}", SpanKind.PRODUCER, letter.payload, time.time_ns())
            span.set_attributes(self._attributes("send", "send", place, letter.route))
            span.set_attribute("messaging.message.id", letter.public_id.decode("ascii", "replace"))
            span.set_attribute("postdate.delay_ms", letter.due_ms - letter.arrived_ms)
            if self._rewrite:
                self._put(letter, span)
            if len(self._open) >= _OPEN_MAX:
                del self._open[next(iter(self._open))]
            self._open[id(letter)] = span

    def answered(self, results: Sequence[Result[Any]]) -> None:
        """End the spans of these letters."""
        now_ms = time.time() * 1000
        for letter, outcome, refusal in results:
            span = self._open.pop(id(letter), None)
            if span is None:
                continue
            span.set_attribute("postdate.outcome", outcome.value)
            span.set_attribute("postdate.lateness_ms", round(now_ms - letter.due_ms, 3))
            if outcome is not Outcome.CONFIRMED:
                span.set_status(Status(StatusCode.ERROR, str(refusal.reason) if refusal else "no answer"))
            span.end()

    def close(self) -> None:
        """Send the spans that wait. Blocking, as long as the exporter takes."""
        self._provider.shutdown()

    def _span(self, name: str, kind: SpanKind, payload: bytes, start_ns: int) -> Span:
        links = [Link(found)] if (found := self._creator(payload)).is_valid else []
        return self._tracer.start_span(name, Context(), kind, links=links, start_time=start_ns)

    def _creator(self, payload: bytes) -> trace.SpanContext:
        try:
            carrier = dict(self._headers.read(payload))
        except ValueError:
            carrier = {}
        return trace.get_current_span(_PROPAGATOR.extract(carrier, Context())).get_span_context()

    def _attributes(self, name: str, kind: str, place: str, route: str) -> dict[str, str]:
        return {
            "messaging.system": self._system,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": place,
            "postdate.route": route,
        }

    def _put(self, letter: Letter, span: Span) -> None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
        if "traceparent" in carrier:
            try:
                payload = self._headers.write(letter.payload, carrier["traceparent"])
            except ValueError:
                return
            letter.payload = payload  # only this process sees its payload
