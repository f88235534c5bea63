"""Connections whose login ends: a failed renewal is tried again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adapters.kafka import sessions
from adapters.kafka.sessions import LastingClient
from bridge.settings import Kafka


async def test_a_certificate_that_cannot_be_read_for_a_moment_does_not_end_renewals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(_: Kafka) -> dict[str, Any]:
        raise FileNotFoundError(2, "No such file", "ca.pem")

    monkeypatch.setattr(sessions, "security", unreadable)
    client: Any = LastingClient.__new__(LastingClient)
    client.rules = Kafka()
    client.cluster = SimpleNamespace(broker_metadata=lambda _: SimpleNamespace(host="kafka", port=9092))
    client._client_id, client._request_timeout_ms, client._connections_max_idle_ms = "postdate", 1000, 1000
    client._sasl_oauth_token_provider = None
    client.renewing = {(1, 0): "a task"}
    known: Any = SimpleNamespace(renew_at=0.0)
    await client._renew((1, 0), known)
    assert client.renewing == {}
    assert known.renew_at > 0
