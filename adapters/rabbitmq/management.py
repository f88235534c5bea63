"""RabbitMQ's management API: what AMQP does not tell. Blocking."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from adapters.rabbitmq.connection import access_token, addresses, forget_tokens, is_secure, tls_context
from bridge.core.errors import BrokerUnavailable
from bridge.settings import RabbitMQ

_TIMEOUT_S = 2
_OK, _NOT_FOUND = 200, 404
_CHANGED = (201, 204)
#: Where the management plugin listens by default, without TLS and with. No password goes to the first over the
#: network where the broker itself is reached by TLS.
_PORT, _TLS_PORT = 15672, 15671


@dataclass(frozen=True, slots=True)
class Governed:
    """A queue as the broker has it: its arguments, the policies that govern it, their effective definition, and the
    rates of its messages."""

    arguments: Mapping[str, Any]
    policy: str
    operator_policy: str
    definition: Mapping[str, Any]
    rates: Mapping[str, Any] = field(default_factory=dict)
    ready: int = 0

    @property
    def limit(self) -> int | None:
        """The most ready messages that it may hold, by its arguments and policies; None for no limit."""
        found = (self.definition.get("max-length"), self.arguments.get("x-max-length"))
        return min((limit for limit in found if isinstance(limit, int)), default=None)

    @property
    def refuses(self) -> bool:
        """Whether it refuses when it is full. A policy overrules a quorum queue's argument, and not a classic one's."""
        by_policy, own = self.definition.get("overflow"), self.arguments.get("x-overflow")
        quorum = self.arguments.get("x-queue-type") == "quorum"
        return str((by_policy or own) if quorum else (own or by_policy)).startswith("reject-publish")


class ManagementApi(AbstractContextManager["ManagementApi"]):
    """A connection to the management API, about the virtual host of ``rabbitmq.url``. Every method raises
    ``BrokerUnavailable``.

    ``login`` is the value of the header Authorization, ``version`` is RabbitMQ's.
    """

    def __init__(self, connection: HTTPConnection, path: str, login: str, vhost: str) -> None:
        self._connection = connection
        self._path = path.rstrip("/")
        self._headers = {"Authorization": login}
        self.vhost, self._vhost = vhost, _quoted(vhost)
        self.version = str((self._ask("GET", "overview") or {}).get("rabbitmq_version", "unknown"))

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def listed(self, kind: str, more: str = "") -> list[Mapping[str, Any]]:
        """Return the exchanges, queues, bindings or policies of the virtual host. Policies need the tag
        `policymaker`."""
        return self._ask("GET", f"{kind}/{self._vhost}{more}") or []

    def bindings_of(self, exchange: str) -> list[Mapping[str, Any]]:
        """Return the bindings that lead from an exchange."""
        return self.listed("exchanges", f"/{_quoted(exchange)}/bindings/source")

    def nodes(self) -> list[Mapping[str, Any]] | None:
        """Return all nodes; None where the user may not ask: that needs the tag monitoring."""
        try:
            return self._ask("GET", "nodes") or []
        except BrokerUnavailable:
            return None

    def _ask(self, method: str, path: str, content: str | None = None) -> Any:
        address = f"{self._connection.host}:{self._connection.port}"
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        try:
            self._connection.request(method, f"{self._path}/api/{path}", content, headers)
            answer = self._connection.getresponse()
            body = answer.read()
            if answer.status == _OK:
                return json.loads(body)
        except (OSError, HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise BrokerUnavailable(f"the management API does not answer at {address} ({reason})") from error
        if answer.status in (_NOT_FOUND, *_CHANGED):
            return None
        tag = "management" if method == "GET" else "policymaker"
        raise BrokerUnavailable(
            f"the management API at {address} refuses the user of rabbitmq.url ({answer.status} {answer.reason}). Give "
            f"that user the tag `{tag}`"
        )

    def set_policy(self, name: str, pattern: str, definition: Mapping[str, str]) -> None:
        """Create or replace a policy for queues."""
        content = {"pattern": pattern, "apply-to": "queues", "definition": definition}
        self._ask("PUT", f"policies/{self._vhost}/{_quoted(name)}", json.dumps(content))

    def queue(self, name: str) -> Governed | None:
        """Return a queue; None where it does not exist. Its policies are known a few seconds after its declaration."""
        found = self._ask("GET", f"queues/{self._vhost}/{_quoted(name)}")
        if not isinstance(found, dict):
            return None
        rules = found.get("effective_policy_definition") or {}
        return Governed(
            {"x-queue-type": found.get("type"), **(found.get("arguments") or {})},
            found.get("policy") or "",
            found.get("operator_policy") or "",
            rules if isinstance(rules, dict) else {},
            found.get("message_stats") or {},
            found.get("messages_ready") or 0,
        )


def _quoted(name: str) -> str:
    return quote(name, safe="")


def reach(settings: RabbitMQ) -> ManagementApi:
    """Return the first API that answers. Raises ``BrokerUnavailable``, also where the settings name none."""
    if settings.management_url == "off":
        raise BrokerUnavailable("rabbitmq.management_url is off")
    login, vhost, troubles = _login(settings), addresses(settings)[0].virtual_host, []
    for connection, path in _candidates(settings):
        try:
            return ManagementApi(connection, path, login, vhost)
        except BrokerUnavailable as error:
            forget_tokens()
            troubles.append(str(error))
            connection.close()
    raise BrokerUnavailable("; ".join(dict.fromkeys(troubles)))


def _login(settings: RabbitMQ) -> str:
    """Return the header Authorization. Raises ``BrokerUnavailable`` without a token."""
    if settings.by_token:
        return f"Bearer {access_token(settings).text}"
    first = addresses(settings)[0].credentials
    return f"Basic {base64.b64encode(f'{first.username}:{first.password}'.encode()).decode()}"


def _candidates(settings: RabbitMQ) -> Iterator[tuple[HTTPConnection, str]]:
    """Yield each possible address of the API, with the path in front of its own."""
    if not settings.management_url:
        for address in addresses(settings):
            yield _http(settings, is_secure(settings), address.host, _TLS_PORT if is_secure(settings) else _PORT), ""
        return
    parts = urlsplit(settings.management_url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    yield _http(settings, secure, parts.hostname or "localhost", port), parts.path


def _http(settings: RabbitMQ, secure: bool, host: str, port: int) -> HTTPConnection:
    if secure:
        return HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=tls_context(settings))
    return HTTPConnection(host, port, timeout=_TIMEOUT_S)
