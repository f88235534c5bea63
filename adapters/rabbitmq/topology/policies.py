"""What policies do to postdate's queues, as RabbitMQ's management API tells it: AMQP does not. Blocking."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from adapters.rabbitmq.connection import addresses, is_secure, tls_context
from adapters.rabbitmq.topology.declarations import Queue
from adapters.rabbitmq.topology.findings import exempt
from adapters.rabbitmq.topology.plan import RouteTopology, plan
from bridge.core.errors import BrokerUnavailable
from bridge.delay.duration import write_duration
from bridge.settings import RabbitMQ, Settings

_TIMEOUT_S = 2
_OK, _NOT_FOUND = 200, 404
#: Where the management plugin listens by default, without TLS and with. No password goes to the first over the
#: network where the broker itself is reached by TLS.
_PORT, _TLS_PORT = 15672, 15671
#: So many queues of one kind of trouble are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Governed:
    """A queue as the broker has it: its arguments, the policies that it obeys, and what these come to."""

    arguments: Mapping[str, Any]
    policy: str
    operator_policy: str
    definition: Mapping[str, Any]

    @property
    def by(self) -> str:
        """Who governs it, for a person."""
        named = (("policy", self.policy), ("operator policy", self.operator_policy))
        return " and ".join(f"{kind} '{name}'" for kind, name in named if name)

    @property
    def refuses(self) -> bool:
        """Whether it refuses when it is full. A policy's word goes first on a quorum queue, last on a classic one."""
        by_policy, own = self.definition.get("overflow"), self.arguments.get("x-overflow")
        quorum = self.arguments.get("x-queue-type") == "quorum"
        return str((by_policy or own) if quorum else (own or by_policy)).startswith("reject-publish")


@dataclass(frozen=True, slots=True)
class Policies:
    """``harms``: a route and a sentence, without its stop, for each harm. ``protected``: queues that refuse when full,
    by a policy where not by their own arguments."""

    harms: tuple[tuple[str, str], ...]
    protected: frozenset[str]


def judge_policies(settings: Settings) -> Policies:
    """What policies do to the queues of all routes. Raises ``BrokerUnavailable`` where the API cannot be asked."""
    vhost = addresses(settings.rabbitmq)[0].virtual_host
    harms: list[tuple[str, str]] = []
    protected = set()
    with closing(_reach(settings.rabbitmq)) as api:
        for route in plan(settings):
            queues = [one for one in route.declarations() if isinstance(one, Queue)]
            found = [(one, governed) for one in queues if (governed := api.queue(vhost, one.name)) is not None]
            protected |= {one.name for one, governed in found if governed.refuses}
            harms += ((route.route, text) for text in _told(route, found, vhost))
    return Policies(tuple(harms), frozenset(protected))


def harms_of(queue: Queue, governed: Governed) -> Iterator[str]:
    """Pure: each thing that the policies of a queue do to its messages. One from which messages go on when their time
    is over sends them early where another would delete them."""
    rules, goes_on = governed.definition, "x-dead-letter-exchange" in queue.arguments
    ttl_ms, own_ms = rules.get("message-ttl"), queue.arguments.get("x-message-ttl")
    if isinstance(ttl_ms, int) and not (isinstance(own_ms, int) and own_ms <= ttl_ms):
        fate = "sends messages on early" if goes_on else "deletes messages that it has confirmed"
        yield f"message-ttl {ttl_ms}: RabbitMQ {fate}, after {write_duration(ttl_ms)}"
    if isinstance(rules.get("expires"), int):
        unused = write_duration(rules["expires"])
        yield f"expires {rules['expires']}: RabbitMQ deletes queue and messages after {unused} without a consumer"
    for name in ("max-length", "max-length-bytes"):
        if name in rules and governed.refuses:
            yield f"{name} {rules[name]}: RabbitMQ refuses messages above that, and producers must watch their confirms"
        elif name in rules:
            fate = "sends the oldest message on early" if goes_on else "deletes the oldest message, confirmed or not"
            yield f"{name} {rules[name]}: above that RabbitMQ {fate}"


def _told(route: RouteTopology, found: list[tuple[Queue, Governed]], vhost: str) -> Iterator[str]:
    """A sentence for each harm, with all queues that have it, and what to do."""
    alike: dict[tuple[str, str], list[str]] = {}
    operators = set()
    for queue, governed in found:
        for harm in harms_of(queue, governed):
            alike.setdefault((governed.by, harm), []).append(queue.name)
            operators |= {governed.operator_policy} - {""}
    base = route.intake.name
    pattern = rf"^{re.escape(base)}(\.|$)"
    advice = f"run {exempt(vhost, base, pattern)}"
    if operators:
        names = ", ".join(f"'{name}'" for name in sorted(operators))
        advice = f"{advice}, and narrow the pattern of operator policy {names}, which nothing overrules"
    for (by, harm), queues in alike.items():
        more = f" and {len(queues) - _NAMED} more" if len(queues) > _NAMED else ""
        yield f"{by} gives {', '.join(map(repr, queues[:_NAMED]))}{more} {harm}: {advice}"


class _Api:
    """A connection to the management API."""

    def __init__(self, connection: HTTPConnection, path: str, user: str, password: str) -> None:
        self._connection = connection
        self._path = path.rstrip("/")
        word = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {word}"}

    def get(self, path: str) -> Any:
        """What is there; None where nothing is. Raises ``BrokerUnavailable``."""
        place = f"{self._connection.host}:{self._connection.port}"
        try:
            self._connection.request("GET", f"{self._path}/api/{path}", headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read()
            if answer.status == _OK:
                return json.loads(body)
        except (OSError, HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise BrokerUnavailable(f"the management API does not answer at {place} ({reason})") from error
        if answer.status == _NOT_FOUND:
            return None
        raise BrokerUnavailable(
            f"the management API at {place} refuses the user of rabbitmq.url ({answer.status} {answer.reason}): give "
            "it the tag `management`"
        )

    def queue(self, vhost: str, name: str) -> Governed | None:
        """A queue; None where there is none. What policies come to is known a few seconds after a queue is made."""
        found = self.get(f"queues/{quote(vhost, safe='')}/{quote(name, safe='')}")
        if not isinstance(found, dict):
            return None
        rules = found.get("effective_policy_definition") or {}
        return Governed(
            {"x-queue-type": found.get("type"), **(found.get("arguments") or {})},
            found.get("policy") or "",
            found.get("operator_policy") or "",
            rules if isinstance(rules, dict) else {},
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _reach(settings: RabbitMQ) -> _Api:
    """The first API that answers. Raises ``BrokerUnavailable``."""
    first = addresses(settings)[0]
    troubles = []
    for connection, path in _doors(settings):
        api = _Api(connection, path, first.credentials.username, first.credentials.password)
        try:
            api.get("overview")
        except BrokerUnavailable as error:
            troubles.append(str(error))
            api.close()
        else:
            return api
    raise BrokerUnavailable("; ".join(dict.fromkeys(troubles)))


def _doors(settings: RabbitMQ) -> Iterator[tuple[HTTPConnection, str]]:
    """Where the API may be, and the path that is before its own."""
    if not settings.management_url:
        for one in addresses(settings):
            yield _door(settings, is_secure(settings), one.host, _TLS_PORT if is_secure(settings) else _PORT), ""
        return
    parts = urlsplit(settings.management_url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    yield _door(settings, secure, parts.hostname or "localhost", port), parts.path


def _door(settings: RabbitMQ, secure: bool, host: str, port: int) -> HTTPConnection:
    if secure:
        return HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=tls_context(settings))
    return HTTPConnection(host, port, timeout=_TIMEOUT_S)
