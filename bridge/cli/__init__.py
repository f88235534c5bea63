"""The command line. ``main`` is the console command ``postdate``; each command is a module of its own.

Only typer is imported here and in the commands' modules: what a command needs, it imports when it runs, so that
``postdate --help`` is quick.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from bridge.core.errors import FAILED, FINE, INTERRUPTED, PostdateError, code_of


def main() -> NoReturn:
    """Run the command that the command line names, and exit."""
    # Or a library's warnings would stand between our own words; `run` sets up its logs.
    logging.getLogger().addHandler(logging.NullHandler())
    if isinstance(sys.stdout, TextIOWrapper):  # under a locale that cannot write every character
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:  # once more, while the first one was being told of
        code = INTERRUPTED
    if code == INTERRUPTED:
        # Python's end takes a while, gives the signal its own meaning back, and would die of one more.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _discard_output()
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. What is wrong is said on standard error in a sentence, never in a traceback."""
    import typer

    from bridge.cli.commands import app
    from bridge.telemetry.printable import complain

    try:
        code: int = app(list(arguments), prog_name="postdate", standalone_mode=False) or FINE
    except PostdateError as error:
        complain(str(error))
        return code_of(error)
    except typer.TyperException as error:
        # The checker below typer has words of its own for a number or a choice that is wrong.
        complain(error.format_message().replace("Value error, ", "").replace("Input should be ", "must be "))
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return FAILED
    if code == INTERRUPTED:  # typer makes this code of Ctrl-C by itself, and says nothing
        complain("Interrupted.")
    return code


def _interrupt(number: int, at: object) -> None:
    """Ctrl-C ends a command where it stands. With Python's own handler asyncio would cancel its work instead, and
    redis-py swallows a cancellation that comes while it connects. ``run`` puts its own in the place of this one."""
    raise KeyboardInterrupt


def _terminate(number: int, at: object) -> None:
    """End as SIGTERM ends any other process. Linux drops it for process 1, which postdate is in a container, unless
    that process handles it. ``run`` puts its own handler in the place of this one."""
    os._exit(128 + number)


def _discard_output() -> None:
    # Python flushes standard output once more when it ends, and would complain about the same pipe again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
