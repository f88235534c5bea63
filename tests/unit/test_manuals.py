"""Every `postdate` command that a page, a help text or a message of postdate shows can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from bridge.cli.commands import COMMANDS, app
from tests.parsed import ROOT, SHIPPED, name, read

PAGES = [ROOT / "README.md", ROOT / "config.example.toml", *sorted((ROOT / "deploy").rglob("*.md"))]
#: What a shell reads as the end of a command, and what stands where a person adds more.
ENDS = re.compile(r"^(\|\|?|&&?|;|[0-9]?>.*|<.*|#.*|\.\.\.|…)$")
TYPED = get_command(app)
STARTS = ("|", "&&", ";", "postdate")
SHELL = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


def commands_in(text: str) -> Iterator[str]:
    """Yield the command lines of a page: lines of its shell blocks, and what it has between backticks."""
    for block in SHELL.findall(text):
        yield from (line.strip().removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines())
    yield from (" ".join(code.split()) for code in INLINE.findall(SHELL.sub("", text)))


def typed_in(line: str) -> Iterator[list[str]]:
    """Yield the words of each call of `postdate` on a command line. What a message fills in is no command."""
    if "postdate" not in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe in a sentence: no command
        return
    for at, word in enumerate(words):
        if word == "postdate" and (at == 0 or words[at - 1] in STARTS):
            end = next((end for end in range(at, len(words)) if ENDS.match(words[end])), len(words))
            called = words[at + 1 : end]
            if called and called[0] not in ("postdate", "--help") and "{" not in called[0]:
                yield called


def shown() -> dict[str, str]:
    """Return each command that is shown, and where."""
    lines = [(page, line) for page in PAGES for line in commands_in(page.read_text())]
    lines += [(file, line) for file in SHIPPED for line in INLINE.findall(read(file)) if "\n" not in line]
    found = {shlex.join(words): name(place) for place, line in lines for words in typed_in(line)}
    examples = (words for command in COMMANDS.values() for line in command.examples for words in typed_in(line))
    return {**found, **{shlex.join(words): "postdate --help" for words in examples}}


def parse(words: list[str]) -> None:
    """Parse a command line as the command does. Raises ``typer.TyperException``."""
    context: Any = TYPED.make_context("postdate", words)
    while hasattr(context.command, "resolve_command"):
        called, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        if not rest and len(words) == 1:
            return  # the name of a command in a sentence
        context = command.make_context(called, rest, parent=context)


@pytest.mark.parametrize(("command", "place"), shown().items())
def test_a_command_that_is_shown_can_be_typed(command: str, place: str) -> None:
    words = shlex.split(command)
    try:
        parse(words)
    except typer.TyperException as error:
        pytest.fail(f"{place} shows `postdate {command}`. {error.format_message()}", pytrace=False)
