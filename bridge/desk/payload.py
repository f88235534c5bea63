"""A message's payload for people: what `postdate send` packs and what `postdate show` opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Draft(NamedTuple):
    """A message to pack; None where a field was not given. Each broker refuses the fields that it does not have."""

    body: bytes
    headers: Mapping[str, str]
    routing_key: str | None = None
    record_key: str | None = None
    topic: str | None = None
    content_type: str | None = None
    message_id: str | None = None
    in_api: bool = False

    def given(self, *names: str) -> str:
        """Return those of these fields that were given, in the caller's words; "" for none."""
        return ", ".join(self.word(name) for name in names if getattr(self, name) is not None)

    def word(self, name: str) -> str:
        """Return what the caller calls a field: a member of the API's request, or an option of `postdate send`."""
        return f'"{name}"' if self.in_api else f"--{name.replace('_', '-')}"


class Packed(NamedTuple):
    """The payload that the store keeps, and the key that orders it among others."""

    order_key: bytes
    payload: bytes


class Opened(NamedTuple):
    """A payload for a person. ``properties`` are all of them by name; ``origin`` are those that say where the message
    was published, and ``other`` the rest. ``body`` is as much of ``body_size`` bytes as was read."""

    properties: Mapping[str, object]
    origin: Mapping[str, object]
    other: Mapping[str, object]
    body: bytes
    body_size: int


def text_of(raw: bytes) -> str:
    """Return bytes that should be text; those that are not UTF-8 as ``\\xNN``."""
    return raw.decode("utf-8", "backslashreplace")
