"""How commands act: at the stores, or over the API where it is named."""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from bridge.core.errors import SettingsError
from bridge.core.orders import Actor
from bridge.operate.local import LocalOperator
from bridge.operate.operator import Operator
from bridge.operate.remote import HttpOperator, api_address, client_of
from bridge.operate.stores import KeptStores
from bridge.settings import Settings, settings_from
from bridge.telemetry.printable import complain

T = TypeVar("T")


def settings_for(config: Path | None) -> Settings:
    """Load the settings of a command that can act over the API. Raises ``SettingsError``.

    The API has settings of its own. Over it, a broken file that --config does not name is a warning.
    """
    try:
        return settings_from(config)
    except SettingsError as error:
        if config is not None or api_address() is None:
            raise
        complain(f"Warning: the API is asked, and the settings here are ignored. {error}")
        return Settings()


def operate(settings: Settings, work: Callable[[Operator], Awaitable[T]], route: str | None = None) -> T:
    """Do ``work`` with an operator of all stores, or of the store of ``route``. Raises what it raises."""

    async def act() -> T:
        operator: Operator
        if (address := api_address()) is None:
            operator = LocalOperator(KeptStores(settings, route), settings, user())
        else:
            operator = HttpOperator(client_of(address))
        try:
            return await work(operator)
        finally:
            await operator.close()

    return asyncio.run(act())


def user() -> Actor:
    """Return the user of the operating system. A container may have a number and no name."""
    try:
        return Actor(getpass.getuser(), "cli")
    except (KeyError, OSError):
        return Actor(f"uid {os.getuid()}", "cli")
