"""Settings that have no effect, and were probably not meant to have none."""

from __future__ import annotations

from bridge.settings.model import Settings


def forgotten_broker(settings: Settings) -> str:
    """What is said to somebody who describes a Kafka that no route uses; "" where there is nothing to say."""
    if not any(name.startswith("kafka.") for name in settings._sources) or settings.routes_of("kafka"):
        return ""
    routes = [name for name in settings.routes if f"routes.{name}.broker" not in settings._sources]
    if not routes:
        return ""
    return (
        f'[kafka] is set and no route uses it: without broker = "kafka" in [routes.{routes[0]}], '
        "that route is one of RabbitMQ"
    )
