"""Makes text from outside harmless to a terminal and a log.

Escapes every character that is not printable by Unicode: control characters, escape sequences, line separators, and
the marks that turn the direction of writing or have no width. Pure.
"""

from __future__ import annotations

import re
import sys

#: A word longer than this is a name or a value from outside, such as a routing key of 255 letters.
_LONG_WORD = re.compile(r"(\S{119})\S{2,}")
_SENTENCE_MAX = 1000


def printable(text: str) -> str:
    """Return ``text`` on one line; what is not printable becomes ``\\x1b`` or ``\\u202e``."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Do the same, but keep line breaks and tabs."""
    return "".join(character if character in "\n\t" else _shown(character) for character in text)


def brief(text: str) -> str:
    """Cut ``text`` for a log line: words of at most 120 characters, 1000 characters in all."""
    short = _LONG_WORD.sub(r"\1…", text)
    return short if len(short) <= _SENTENCE_MAX else f"{short[: _SENTENCE_MAX - 1]}…"


def as_sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return ended(text[:1].upper() + text[1:])


def ended(text: str) -> str:
    """Return a text with a full stop, unless it has a mark at its end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def say(text: str) -> None:
    """Print a remark on standard error: what was done, what to do next."""
    print(printable_lines(text), file=sys.stderr)


def complain(text: str) -> None:
    """Print on standard error what is wrong."""
    print(printable_lines(text).rstrip("\n"), file=sys.stderr)


def _shown(character: str) -> str:
    # backslashreplace leaves what ASCII can carry, control characters too; unicode_escape does not.
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
