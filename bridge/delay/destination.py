"""The destination that a producer names in a header: taken only where the route allows it. Pure.

The bridge publishes with its own rights and must not lend them, so what is not on the route's list is refused. It is
looked at when a message comes, so that its producer need not wait for the answer, and again when it leaves, because the
list may be another one by then.
"""

from __future__ import annotations

from collections.abc import Collection

from bridge.core.message import HeaderValue
from bridge.delay.duration import quoted

HEADER = "x-delay-to"
#: The kind of the refusal.
NOT_ALLOWED = "not_allowed"


def why_not(value: HeaderValue, allowed: Collection[str]) -> str:
    """Why a message may not go where its header says, as a sentence; "" where it may. ``allowed`` are names."""
    name = value
    if isinstance(value, bytes):
        try:
            name = value.decode()
        except UnicodeDecodeError:
            name = None
    if isinstance(name, str) and name in allowed:
        return ""
    shown = quoted(value) if isinstance(value, (str, bytes)) else "no name"
    if not allowed:
        return f"header {HEADER} says {shown}, and the route's allow_to is empty"
    return f"header {HEADER} says {shown}, which is not in the route's allow_to"
