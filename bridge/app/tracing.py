"""Tracing by the settings: a tracer where it is on, which needs the extra ``otel``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bridge.app.brokers import Broker
from bridge.core.errors import SettingsError
from bridge.settings import ProcessPlan


def open_tracer(process: ProcessPlan, broker: Broker, instance: str) -> Any:
    """Return the tracer of one process; None where tracing is off. Raises ``SettingsError`` without the extra."""
    settings = process.settings
    if not settings.tracing.enabled:
        return None
    if find_spec("opentelemetry.sdk") is None:
        text = "tracing.enabled requires OpenTelemetry. Install the extra otel: deploy/README.md, Install"
        raise SettingsError(text)
    traces = import_module("bridge.telemetry.traces")
    headers = traces.TraceHeaders(broker.payloads.trace_headers, broker.payloads.with_traceparent)
    return traces.Tracer(process.broker, places_of(process), headers, settings.tracing.propagation == "link", instance)


def places_of(process: ProcessPlan) -> dict[str, tuple[str, str]]:
    """Return where the messages of each route come from and go to, as spans name it. Pure."""
    return {
        name: (route.queue, route.queue) if route.retries and route.queue else (route.intercept, route.target)
        for name, route in process.settings.routes.items()
    }
