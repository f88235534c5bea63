"""Tells the source of partitions that it loses, and of those that it gets, when the group is shared out anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiokafka import ConsumerRebalanceListener, TopicPartition


class Listener(ConsumerRebalanceListener):
    """The group goes on when ``revoked`` has returned; ``assigned`` partitions are to be begun."""

    def __init__(
        self,
        revoked: Callable[[Iterable[TopicPartition]], Awaitable[None]],
        assigned: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """The group is about to share out its partitions anew."""
        await self._revoked(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """They are to be begun."""
        self._assigned(assigned)
