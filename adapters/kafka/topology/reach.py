"""How far back a replay of an intake reaches after a loss of Redis: as far as Kafka keeps its records."""

from __future__ import annotations

from aiokafka.admin import AIOKafkaAdminClient

from adapters.kafka.topology.declaring import pairs_of
from adapters.kafka.topology.findings import RETENTION
from adapters.kafka.topology.topics import known_topics, settings_of, with_admin
from bridge.delay.duration import write_duration
from bridge.settings import Settings

_BYTES = "retention.bytes"


def replay_reach(settings: Settings) -> list[tuple[str, str]]:
    """Return a sentence for each route with a store: about the intake topic that keeps its records shortest. Topics
    whose settings may not be read are left out. Blocking. Raises ``BrokerUnavailable``."""

    async def ask(admin: AIOKafkaAdminClient) -> list[tuple[str, str]]:
        known = await known_topics(admin)
        intakes = {intake.name: intake.route for intake, _ in pairs_of(settings, known) if intake.partitions}
        shortest: dict[str, tuple[float, str, int]] = {}
        for name, config in (await settings_of(admin, intakes, (RETENTION, _BYTES))).items():
            kept_ms, most_bytes = (int(config.values.get(key, -1)) for key in (RETENTION, _BYTES))
            found = (kept_ms if kept_ms >= 0 else float("inf"), name, most_bytes)
            shortest[intakes[name]] = min(found, shortest.get(intakes[name], found))
        return [
            (route, sentence(name, kept_ms, most_bytes, *_longest(settings, route)))
            for route, (kept_ms, name, most_bytes) in shortest.items()
            if settings.routes[route].stored
        ]

    return with_admin(settings, ask)


def _longest(settings: Settings, route: str) -> tuple[int, str]:
    """Return the longest wait of a route, and the setting that says so."""
    if settings.routes[route].retries:
        return max(settings.schedule_of(route), default=0), f"routes.{route}.schedule"
    return settings.limits.max_delay, "limits.max_delay"


def sentence(topic: str, kept_ms: float, most_bytes: int, longest_ms: int, setting: str) -> str:
    """Return what a replay brings back of a topic that keeps its records for so long. Pure."""
    longest = f"{setting} is {write_duration(longest_ms)}"
    if kept_ms >= longest_ms:
        text = f"should Redis be lost, a replay of '{topic}' brings back all that waits ({longest})"
    else:
        kept = write_duration(int(kept_ms))
        text = f"should Redis be lost, a replay of '{topic}' brings back records of the last {kept} only ({longest})"
    return f"{text}, as far as {_BYTES} ({most_bytes}) keeps them" if most_bytes >= 0 else text
