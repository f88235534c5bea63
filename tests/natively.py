"""``postdate run`` that takes every RabbitMQ for one whose quorum queues delay by themselves (4.4 and later).

So the guard is tested on any RabbitMQ. The tests run it as a script: ``python -m tests.natively --config FILE``.
"""

from __future__ import annotations

import sys

from adapters.rabbitmq import native_guard
from bridge.cli import main

#: Every version is at or after it.
ANY = (0, 0)

if __name__ == "__main__":
    native_guard.FIRST = ANY
    sys.argv = [sys.argv[0], "run", *sys.argv[1:]]
    main()
