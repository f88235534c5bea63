"""The table of commands: it names every command, and imports only the one that is called."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.main import get_command

from bridge.cli.commands import COMMANDS, app

SLOW = ("pika", "aiokafka", "redis", "pydantic", "rich", "structlog")


def resolved(name: str) -> Any:
    group: Any = get_command(app)
    return group.resolve_command(typer.Context(group), [name])[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_sentence_of_the_commands_own_help(name: str) -> None:
    first = f"{resolved(name).help.partition('.')[0]}."
    if name == "levels":
        first = first.replace(" (mode levels, ladder or native)", "")
    assert COMMANDS[name].summary == " ".join(first.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_fits_one_line_of_the_help(name: str) -> None:
    assert len(COMMANDS[name].summary) <= 64


@pytest.mark.slow
def test_help_lists_every_command_and_imports_no_library_that_only_commands_need() -> None:
    code = (
        "import sys; from bridge.cli import run_command; run_command(['--help']); "
        f"print('imported:', [name for name in {SLOW!r} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []
    assert out.splitlines()[-1] == "imported: []"


def test_a_misspelt_command_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(typer.TyperException) as caught:
        resolved("lsit")
    assert caught.value.format_message() == "No such command 'lsit'. Did you mean 'list'?"


@pytest.mark.slow
def test_completion_offers_commands_with_their_summaries_and_imports_none() -> None:
    code = (
        "import sys; from typer import Context; from typer.main import get_command; "
        "from bridge.cli.commands import app; group = get_command(app); "
        "offered = group.shell_complete(Context(group), 'sh'); "
        f"print([(item.value, item.help) for item in offered], [word for word in {SLOW!r} if word in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == f"[('show', '{COMMANDS['show'].summary}')] []"
