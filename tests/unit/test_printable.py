"""What a producer wrote is never obeyed by the screen of the one who looks at it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bridge.cli.show import body_lines, hex_lines
from bridge.operate.describe import whole_text
from bridge.telemetry.printable import printable, printable_lines

ANY_TEXT = st.text(st.characters(codec=None), max_size=40)


@given(ANY_TEXT)
def test_no_text_has_anything_left_that_is_not_printable(text: str) -> None:
    assert printable(text).isprintable()
    assert all(letter.isprintable() or letter in "\n\t" for letter in printable_lines(text))


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=40))
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_escapes_are_shown_and_not_done() -> None:
    assert printable("\x1b[31mred\x07\r\nnext\u202e\x9b") == r"\x1b[31mred\x07\r\nnext\u202e\x9b"
    assert printable_lines("a\tb\nc\x1b") == "a\tb\nc\\x1b"


@given(st.binary(max_size=200), st.booleans())
def test_no_body_can_speak_to_the_terminal(body: bytes, truncated: bool) -> None:
    assert all(letter.isprintable() or letter == "\t" for line in body_lines(body, truncated) for letter in line)


def test_a_body_of_text_is_shown_as_text_and_one_with_escapes_as_hex() -> None:
    assert list(body_lines(b'{"a": 1}\r\nb', False)) == ['{"a": 1}', "b"]
    assert list(body_lines(b"\x1b[2J", False)) == ["00000000  1b 5b 32 4a                                      .[2J"]
    assert list(hex_lines(b"\0" * 17))[1].startswith("00000010  00 ")


def test_a_character_that_was_cut_in_the_middle_does_not_make_text_into_hex() -> None:
    cut = "grün".encode()[:3]
    assert whole_text(cut, True) == "gr"
    assert whole_text(cut, False) is None


def test_json_is_written_in_ascii_so_that_no_terminal_obeys_it() -> None:
    assert json.dumps("\x1b\u202e\x9b").isascii()
