"""``postdate run`` whose claim loop stops at a signal (SIGUSR1) and which soon calls a loop stuck.

The tests run it as a script: ``python -m tests.chaos.blocked --config FILE``.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from bridge.app import daemon
from bridge.cli import main
from bridge.pipeline.claim import Claimer

TURN_S = 1.0
_pass = Claimer.once
_blocked = asyncio.Event()


async def once(self: Claimer, idle: bool = True) -> int:
    """One pass; after the signal one without an end."""
    if _blocked.is_set():
        await asyncio.Event().wait()
    return await _pass(self, idle)


if __name__ == "__main__":
    own, *rest = sys.argv
    vars(daemon)["_TURN_S"] = TURN_S
    setattr(Claimer, "once", once)  # noqa: B010 (a method cannot be assigned to)
    signal.signal(signal.SIGUSR1, lambda number, frame: _blocked.set())
    sys.argv = [own, "run", *rest]
    main()
