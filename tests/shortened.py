"""``postdate`` with shorter waits, where a test needs a wait that no setting has.

The tests run it as a script: ``python -m tests.shortened MODULE.NAME=SECONDS ... run --config FILE``. The HTTP process
beside a bridge is another interpreter, and gets the same waits.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from bridge.cli import main
from bridge.process import http_child
from bridge.process.workers import python_command


def shorten(waits: Sequence[str]) -> None:
    """Set each ``MODULE.NAME=NUMBER``."""
    for wait in waits:
        place, _, number = wait.partition("=")
        module, _, name = place.rpartition(".")
        names = vars(importlib.import_module(module))
        assert isinstance(names[name], float | int), place
        names[name] = type(names[name])(number)


if __name__ == "__main__":
    own, *rest = sys.argv
    waits = [word for word in rest if word.startswith(("bridge.", "adapters.")) and "=" in word]
    shorten(waits)
    first = f"from tests.shortened import shorten; shorten({waits!r})"
    http_child.COMMAND = python_command("bridge.http.server", "run_child", first=first)
    sys.argv = [own, *rest[len(waits) :]]
    main()
