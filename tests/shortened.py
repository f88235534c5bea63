"""``postdate run`` with shorter waits, where a test needs a wait that no setting has.

The tests run it as a script: ``python -m tests.shortened MODULE.NAME=SECONDS ... --config FILE``.
"""

from __future__ import annotations

import importlib
import sys

from bridge.cli import main

if __name__ == "__main__":
    own, *rest = sys.argv
    waits = [word for word in rest if not word.startswith("-") and "=" in word]
    for wait in waits:
        place, _, seconds = wait.partition("=")
        module, _, name = place.rpartition(".")
        names = vars(importlib.import_module(module))
        assert isinstance(names[name], float), place
        names[name] = float(seconds)
    sys.argv = [own, "run", *rest[len(waits) :]]
    main()
