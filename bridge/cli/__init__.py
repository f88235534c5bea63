"""The command line. ``main`` is the console command ``postdate``; each command is a module of its own.

``bridge.cli.commands`` is a table of the commands: a command's module is imported when that command runs.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import typer

from bridge.cli.commands import app
from bridge.core.errors import FAILED, FINE, INTERRUPTED, PostdateError, code_of
from bridge.telemetry.printable import complain, ended

#: Errors of a file or pipe that cannot be written: closed, full, beyond a limit, or broken.
_UNWRITABLE = {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> NoReturn:
    """Run the command that the command line names, and exit."""
    # Without a handler, warnings of libraries would appear between postdate's own output. `run` sets up its logs.
    logging.getLogger().addHandler(logging.NullHandler())
    if sys.stdout is None:  # the caller closed it. Writing to this one fails, and no socket gets its number
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # under a locale that cannot write every character
        sys.stdout.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:  # a second one, while the first was being reported
        code = INTERRUPTED
    if code == INTERRUPTED:
        # Python restores the signal's default action before it has ended: one more Ctrl-C would kill it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(FAILED if _output_is_lost() else code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors go to standard error as sentences, never as a traceback."""
    try:
        code: int = app(list(arguments), prog_name="postdate", standalone_mode=False) or FINE
    except PostdateError as error:
        complain(_sentence(str(error)))
        return code_of(error)
    except typer.TyperException as error:
        # The validator below typer has its own words for a wrong number or choice.
        text = error.format_message().replace("Value error, ", "").replace("Input should be ", "must be ")
        complain(_sentence(text))
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return FAILED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _complain_of_output(error)
        return FAILED
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code, and prints nothing
        complain("Interrupted.")
    return code


def _sentence(text: str) -> str:
    """Return an error's text with a full stop; one with several lines is a list and stays as it is."""
    return text if "\n" in text else ended(text)


def _interrupt(number: int, at: object) -> None:
    """End a command at Ctrl-C. Python's own handler would let asyncio cancel its work instead, and redis-py swallows a
    cancellation while it connects. ``run`` installs its own handler."""
    sys.unraisablehook = lambda unraisable: None  # what the interrupt left half built complains when it is collected
    raise KeyboardInterrupt


def _terminate(number: int, at: object) -> None:
    """End at SIGTERM as any other process does. Linux drops the signal for process 1, which postdate is in a container,
    unless that process handles it. ``run`` installs its own handler."""
    os._exit(128 + number)


def _output_is_lost() -> bool:
    """Write what standard output still buffers. Where that fails, say so once, discard it, and return True."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        _discard_output()
    except OSError as error:
        _complain_of_output(error)
        return True
    return False


def _complain_of_output(error: OSError) -> None:
    complain(f"Cannot write the output: {error.strerror}.")
    _discard_output()


def _discard_output() -> None:
    # Python flushes standard output once more at exit, and would complain about the same pipe again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
