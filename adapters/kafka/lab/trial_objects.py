"""Kafka with the topics and the group of one run of demo or bench. Blocking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from importlib.metadata import version
from typing import Any, TypeVar

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.admin import DeleteGroupsRequest

from adapters.kafka.access import trial_errors
from adapters.kafka.client import connection
from bridge.core.errors import BrokerUnavailable
from bridge.lab.ports import RunNames
from bridge.settings import Settings

T = TypeVar("T")

_TIMEOUT_MS = 10_000
_POLL_S = 0.1
_PARTITIONS = 12
_LEADERS_S = 15.0
#: How long a broker may keep members of a bridge that was killed.
_GROUP_S = 12.0
_GONE = (0, errors.UnknownTopicOrPartitionError.errno)


class KafkaTrialBroker(AbstractContextManager["KafkaTrialBroker"]):
    """The topic that a route delivers to, and the deletion of everything: ``bridge.lab.ports.TrialBroker``."""

    def __init__(self, settings: Settings, names: RunNames) -> None:
        self._settings = settings.kafka
        self._names = names
        self._runner = asyncio.Runner()
        try:
            self._wait_for(self._open())
        except BaseException:
            self._runner.close()
            raise

    def __exit__(self, *_: object) -> None:
        with suppress(BrokerUnavailable):
            self._wait_for(self._admin.close())
        self._runner.close()

    @property
    def versions(self) -> dict[str, str]:
        """The client's version, because a broker does not report its own."""
        return {"aiokafka": version("aiokafka")}

    def create(self) -> None:
        """Create the destination topic and wait for its leaders. postdate creates the intake topic itself."""
        self._wait_for(self._make())
        late = f"topic '{self._names.target}' has no leaders {_LEADERS_S:.0f} s after it was created"
        self._wait_until(self._is_led, _LEADERS_S, late)

    def consumed(self) -> bool:
        return self._wait_for(self._consumed())

    def delete(self) -> None:
        self._wait_for(self._delete_topics())
        self._wait_until(self._group_is_gone, _GROUP_S, f"the group '{self._names.prefix}' cannot be deleted")

    def _wait_until(self, ask: Callable[[], Coroutine[Any, Any, bool]], within_s: float, otherwise: str) -> None:
        give_up = time.monotonic() + within_s
        while not self._wait_for(ask()):
            if time.monotonic() > give_up:
                raise BrokerUnavailable(otherwise)
            time.sleep(_POLL_S)

    def _wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        with trial_errors(self._settings):
            return self._runner.run(asked)

    async def _open(self) -> None:
        self._admin = AIOKafkaAdminClient(
            **connection(self._settings, "postdate trial"), request_timeout_ms=_TIMEOUT_MS
        )
        await self._admin.start()

    async def _make(self) -> None:
        # The broker's default replication factor. The client accepts -1 only with an assignment, even an empty one.
        answer = await self._admin.create_topics([NewTopic(self._names.target, _PARTITIONS, -1, {})])
        for _, code, *_ in answer.topic_errors:
            if code:
                raise errors.for_code(code)

    async def _is_led(self) -> bool:
        (found,) = await self._admin.describe_topics([self._names.target])
        return bool(found["partitions"]) and all(partition["leader"] >= 0 for partition in found["partitions"])

    async def _consumed(self) -> bool:
        try:
            (answer,) = await self._admin.describe_consumer_groups([self._names.prefix])
        except errors.KafkaError:  # no group exists yet, so the offsets topic is missing
            return False
        intake = self._names.front.encode()
        # The sixth field of a group holds its members, the last field of a member its partitions.
        return any(intake in member[-1] for group in answer.groups for member in group[5])

    async def _delete_topics(self) -> None:
        answer = await self._admin.delete_topics([self._names.front, self._names.target])
        for _, code, *_ in answer.topic_error_codes:
            if code not in _GONE:
                raise errors.for_code(code)

    async def _group_is_gone(self) -> bool:
        """Delete the group. False while it has members or no coordinator."""
        group = self._names.prefix
        try:
            coordinator = await self._admin.find_coordinator(group)
        except errors.GroupCoordinatorNotAvailableError:
            return False
        answer: Any = await self._admin._send_request(DeleteGroupsRequest([group]), coordinator)
        return answer.results[0][1] in (0, errors.GroupIdNotFound.errno)
