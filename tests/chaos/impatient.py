"""``postdate run`` with a short ``max.poll.interval.ms``: Kafka's default of five minutes is too long for a test.

The tests run it as a script:
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
