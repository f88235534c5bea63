"""Text from outside made fit for a terminal or a log: whatever a producer wrote, the reader's screen does not obey it.

Escapes every character that is not printable by Unicode: control characters, escape sequences, line separators, and
the marks that turn the direction of writing or have no width. Pure.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` on one line; what is not printable is written as ``\\x1b`` or ``\\u202e``."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """As ``printable``, but line breaks and tabs stay."""
    return "".join(one if one in "\n\t" else _shown(one) for one in text)


def _shown(character: str) -> str:
    # backslashreplace leaves what ASCII can carry, control characters too; unicode_escape does not.
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
