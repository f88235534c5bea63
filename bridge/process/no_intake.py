"""A source that has nothing: of a house whose routes have left it, and whose messages are still to be delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from bridge.core.message import Delivery


class NoIntake:
    """See ``bridge.core.ports.Source``."""

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """See ``bridge.core.ports.Source.take``. Never."""
        await asyncio.Event().wait()
        return []

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """See ``bridge.core.ports.Source.more``."""
        return []

    def alive(self, delivery: Delivery) -> bool:
        """See ``bridge.core.ports.Source.alive``."""
        return False

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """See ``bridge.core.ports.Source.accept``."""

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """See ``bridge.core.ports.Source.drop``."""

    def place(self, delivery: Delivery) -> dict[str, object]:
        """See ``bridge.core.ports.Source.place``."""
        return {}

    def stop(self) -> None:
        """See ``bridge.core.ports.Source.stop``."""

    def emptied(self) -> bool:
        """See ``bridge.core.ports.Source.emptied``."""
        return True
