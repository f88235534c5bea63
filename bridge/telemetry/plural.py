"""A number of things, in words."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """Pure: "1 message", "2 messages". ``what`` is the singular of a word that takes an s."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
