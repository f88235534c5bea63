"""One call of a script, and the durability that is waited for behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from adapters.redis.scripts import Script
from bridge.core.errors import StoreUnavailable


class Call(NamedTuple):
    """One script with its keys, all of one shard, and its arguments."""

    script: Script
    keys: tuple[str, ...]
    args: Sequence[Any]


class Wait(NamedTuple):
    """A wait that follows the writes on the same connection, how many must have answered, and what is said, with the
    advice behind it, when fewer have."""

    command: tuple[Any, ...]
    needed: int
    words: str
    advice: str = ""


def checked(replies: list[Any], answered: Any, wait: Wait) -> list[Any]:
    """Every reply; in place of those that worked, the error that the wait was not answered by enough."""
    error: Exception | None = None
    if isinstance(answered, Exception):
        error = answered
    else:
        count = answered[0] if isinstance(answered, list) else answered  # WAITAOF answers [this server, replicas]
        if count < wait.needed:
            error = StoreUnavailable(f"{wait.words}: {count} of {wait.needed} answered{wait.advice}")
    return [reply if error is None or isinstance(reply, Exception) else error for reply in replies]
