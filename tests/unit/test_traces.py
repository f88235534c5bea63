"""Spans of parking and sending: linked to the producer's trace, never part of it; headers change only where asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from adapters.kafka import broker_payloads as kafka
from adapters.kafka.raw import record
from adapters.rabbitmq import broker_payloads as rabbitmq
from adapters.rabbitmq.raw import payload as stored
from bridge.core.message import Delivery, Outcome, Refusal
from bridge.core.ports import Result
from bridge.core.reasons import Reason, ReasonKind
from bridge.pipeline.traced import TracedSink, TracedSource, traced
from bridge.telemetry.traces import TraceHeaders, Tracer
from tests.raw_amqp import persistent

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"a": "b", "traceparent": PARENT}


def of_rabbitmq() -> bytes:
    return stored.pack(b"key", persistent(headers=HEADERS), b"body")


def of_kafka() -> bytes:
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    return record.pack(2, 17, b"key", b"value", headers, b"orders.delay")


@dataclass
class Sent:
    payload: bytes
    route: str = "orders"
    public_id: bytes = b"1gd4r5kq2000ab3c9d00"
    due_ms: int = 2000
    arrived_ms: int = 1000


class Line:
    def __init__(self, broker: Any, rewrite: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        headers = TraceHeaders(broker.trace_headers, broker.with_traceparent)
        places = {"orders": ("orders.delay", "orders")}
        self.tracer = Tracer("rabbitmq", places, headers, rewrite, "a-1", self.exporter)

    def spans(self) -> list[Any]:
        self.tracer.close()
        return list(self.exporter.get_finished_spans())


@pytest.mark.parametrize(("broker", "payload"), [(rabbitmq, of_rabbitmq()), (kafka, of_kafka())])
class TestBothBrokers:
    def test_a_parked_message_has_a_trace_of_its_own_that_links_to_the_producers(
        self, broker: Any, payload: bytes
    ) -> None:
        line = Line(broker)
        line.tracer.accepted([Delivery(0, "orders", payload, b"key", {}, 1000)])
        (span,) = line.spans()
        assert (span.name, span.kind, span.parent) == ("park orders.delay", SpanKind.CONSUMER, None)
        assert [f"{link.context.span_id:016x}" for link in span.links] == [PARENT.split("-")[2]]
        assert f"{span.context.trace_id:032x}" != PARENT.split("-")[1]
        assert span.start_time == 1_000_000_000

    def test_a_sent_message_has_its_lateness_and_outcome_and_keeps_its_headers(
        self, broker: Any, payload: bytes
    ) -> None:
        line, letter = Line(broker), Sent(payload)
        line.tracer.publishing([letter])
        line.tracer.answered([Result(letter, Outcome.CONFIRMED, None)])
        (span,) = line.spans()
        assert (span.name, span.kind, len(span.links)) == ("send orders", SpanKind.PRODUCER, 1)
        assert span.attributes["postdate.delay_ms"] == 1000
        assert span.attributes["postdate.outcome"] == "confirmed"
        assert letter.payload == payload

    def test_with_link_the_consumer_gets_the_span_and_the_producers_header_is_kept(
        self, broker: Any, payload: bytes
    ) -> None:
        line, letter = Line(broker, rewrite=True), Sent(payload)
        line.tracer.publishing([letter])
        line.tracer.answered([Result(letter, Outcome.CONFIRMED, None)])
        (span,) = line.spans()
        assert broker.trace_headers(letter.payload)["traceparent"].split("-")[2] == f"{span.context.span_id:016x}"
        assert PARENT.encode() in letter.payload
        assert b"x-delay-traceparent" in letter.payload
        assert broker.body_of(letter.payload) == broker.body_of(payload)


def test_a_refused_message_is_an_error() -> None:
    line, letter = Line(rabbitmq), Sent(of_rabbitmq())
    line.tracer.publishing([letter])
    reason = Reason(ReasonKind.UNROUTABLE, "no queue takes it")
    line.tracer.answered([Result(letter, Outcome.REFUSED, Refusal(reason))])
    (span,) = line.spans()
    assert span.status.status_code is StatusCode.ERROR


def test_a_message_without_trace_headers_or_with_damaged_ones_has_no_link() -> None:
    line = Line(rabbitmq)
    delivery = Delivery(
        0, "orders", stored.pack(b"key", persistent(headers={"traceparent": "nonsense"}), b""), b"", {}, 1000
    )
    line.tracer.accepted([delivery, replace(delivery, payload=b"damaged")])
    assert [len(span.links) for span in line.spans()] == [0, 0]


def test_source_and_sink_are_wrapped_only_with_a_tracer() -> None:
    source: Any = object()
    assert traced(source, source, None) == (source, source)


class Recorder:
    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.told.append(name) or given  # type: ignore[func-returns-value]


def test_the_wrapped_ends_do_what_they_did_and_tell_the_tracer() -> None:
    inner: Any = Recorder()
    tracer: Any = Recorder()
    source, sink = traced(inner, inner, tracer)
    assert isinstance(source, TracedSource)
    assert isinstance(sink, TracedSink)
    source.accept([])
    sink.publish([])
    source.stop()
    assert inner.told == ["accept", "publish", "stop"]
    assert tracer.told == ["accepted", "publishing"]
