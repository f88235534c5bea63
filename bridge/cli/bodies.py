"""A body for a terminal: text where it is text, else a hex dump. Pure."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator

from bridge.telemetry.printable import printable_lines

_WIDTH = 16


def whole_text(body: bytes, truncated: bool) -> str | None:
    """The body as text, or None where it is not UTF-8; a character that was cut at the end is left out."""
    try:
        return getincrementaldecoder("utf-8")().decode(body, not truncated)
    except UnicodeDecodeError:
        return None


def body_lines(body: bytes, truncated: bool) -> Iterator[str]:
    """The lines to print."""
    text = whole_text(body, truncated)
    if text is not None and all(one.isprintable() or one in "\n\r\t" for one in text):
        yield from printable_lines(text.replace("\r\n", "\n")).split("\n")
    else:
        yield from hex_lines(body)
    if truncated:
        yield f"... cut after {len(body)} bytes: --full shows everything, --raw writes the bytes"


def hex_lines(body: bytes) -> Iterator[str]:
    """Offset, bytes, and the letters among them."""
    for at in range(0, len(body), _WIDTH):
        piece = body[at : at + _WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"{at:08x}  {piece.hex(' '):<{_WIDTH * 3 - 1}}  {letters}"
