"""Connections whose login ends: replaced before the broker ends them, which would cost seconds.

A broker ends a connection when its token expires, or after ``connections.max.reauth.ms``. Clients in Java log in again
on the open connection (KIP-368); aiokafka cannot. Here a new connection takes over after four fifths of the session,
and the old one closes when its last answer has come.

aiokafka opens connections by the class that its module ``conn`` names, so ``LimitedConnection`` takes that place.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import Any

import aiokafka.conn
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailed
from aiokafka.protocol.admin import SaslAuthenticateRequest

from adapters.kafka.access import security
from bridge.settings import Kafka
from bridge.settings.oauth import RENEWED

#: A connection is known by its node and group of requests.
Key = tuple[Any, Any]

#: How long to wait after a new connection could not be opened.
_AGAIN_S = 0.2


class LimitedConnection(AIOKafkaConnection):
    """A connection that knows when its login ends, by the monotonic clock."""

    renew_at = ends_at = math.inf

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:
        """Send, and report a connection that broke a moment ago as one that closed.

        uvloop raises a bare RuntimeError there, and aiokafka expects an OSError (its issue 1038). It would end the task
        that updates aiokafka's metadata, and the search for the group's coordinator would wait for it for ever.
        """
        try:
            answer: Awaitable[Any] = super().send(request, expect_response)
        except KafkaError:
            raise
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken") from error
        return self._learn(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    async def _learn(self, sent: Awaitable[Any]) -> Any:
        """Take over the end of the session. Raises ``SaslAuthenticationFailed`` for a refused token.

        Of a token Kafka says so in the data of a successful answer (RFC 7628), which aiokafka does not read.
        """
        answer = await sent
        if self._sasl_mechanism == "OAUTHBEARER" and answer.sasl_auth_bytes:
            self._sasl_oauth_token_provider.forget()
            raise SaslAuthenticationFailed(answer.sasl_auth_bytes.decode(errors="replace"))
        lifetime_s = getattr(answer, "session_lifetime_ms", 0) / 1000
        if lifetime_s > 0:
            now = time.monotonic()
            self.renew_at, self.ends_at = now + RENEWED * lifetime_s, now + lifetime_s
        return answer


aiokafka.conn.AIOKafkaConnection = LimitedConnection


class LastingClient(AIOKafkaClient):
    """A client that lives long. Each of its connections reads password and certificates again. It keeps all topics."""

    rules: Kafka
    #: Connections that open, by node and group.
    renewing: dict[Key, asyncio.Task[None]]
    #: Connections that wait for their last answers.
    retired: set[LimitedConnection]
    _tasks: set[asyncio.Task[None]]

    def add_topic(self, topic: str) -> Any:
        """Ask for the metadata of a topic, too. A client of all topics has no list of them, and aiokafka would begin
        one: from then on it would know this topic alone, and a pattern would match no other."""
        return super().add_topic(topic) if self._topics else self.force_metadata_update()

    @property
    def _sasl_plain_password(self) -> str:
        return self.rules.sasl_password.get_secret_value()

    @property
    def _ssl_context(self) -> Any:
        return security(self.rules).get("ssl_context")

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        key = node_id, group
        known = self._conns.get(key)
        if known is not None and (now := time.monotonic()) > known.renew_at and known.connected():
            if now > known.ends_at:  # nothing was sent for long: Kafka would end it with the next request
                known.close()
            elif key not in self.renewing:
                task = self.renewing[key] = asyncio.ensure_future(self._renew(key, known))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return await super()._get_conn(node_id, group=group, no_hint=no_hint)

    async def _renew(self, key: Key, known: LimitedConnection) -> None:
        """Let a new connection take over. If none opens, this is tried again while the old one lasts."""
        fresh = await self._open(key[0])
        del self.renewing[key]
        if fresh is None:
            known.renew_at = time.monotonic() + _AGAIN_S
        elif self._conns.get(key) is not known:
            fresh.close()
        else:
            self._conns[key] = fresh
            self.retired.add(known)
            if pending := [answer for *_, answer in known._requests]:
                await asyncio.wait(pending)
            self.retired.discard(known)
            known.close()

    async def _open(self, node_id: Any) -> LimitedConnection | None:
        broker = self.cluster.broker_metadata(node_id)
        if broker is None:
            return None
        common = {"client_id": self._client_id, "request_timeout_ms": self._request_timeout_ms}
        idle = {"max_idle_ms": self._connections_max_idle_ms, "on_close": self._on_connection_closed}
        try:
            login = security(self.rules) | {"sasl_oauth_token_provider": self._sasl_oauth_token_provider}
            fresh: LimitedConnection = await aiokafka.conn.create_conn(
                broker.host, broker.port, **common, **idle, **login
            )
        except (KafkaError, OSError):
            return None
        return fresh

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for old in self.retired:
            old.close()
        await super().close()


def lasting(client: AIOKafkaClient, rules: Kafka) -> None:
    """Turn a client into a lasting one. aiokafka's producer and consumer make theirs themselves."""
    client.__class__, client.rules = LastingClient, rules
    client.renewing, client.retired, client._tasks = {}, set(), set()
