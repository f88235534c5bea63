"""``postdate run`` as a member of a group that is given up early when it does not poll.

Five minutes, Kafka's default, is longer than a test should last. Run by the tests:
``python -m tests.chaos.impatient MILLISECONDS --config FILE``.
"""

from __future__ import annotations

import sys
from functools import partial

from aiokafka import AIOKafkaConsumer

from adapters.kafka import client
from bridge.cli import main

if __name__ == "__main__":
    own, milliseconds, *rest = sys.argv
    vars(client)["AIOKafkaConsumer"] = partial(AIOKafkaConsumer, max_poll_interval_ms=int(milliseconds))
    sys.argv = [own, "run", *rest]
    main()
