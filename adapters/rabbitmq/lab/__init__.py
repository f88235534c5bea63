"""A load generator and a lateness meter for RabbitMQ, each a process of its own.

Both speak raw AMQP 0-9-1 frames, encoded with pika's own codecs: a client library would take more of the machine's
cores than the thing that is measured.
"""

from functools import partial

from adapters.rabbitmq.lab.generator import Generator
from adapters.rabbitmq.lab.meter import Meter
from bridge.lab.bench.processes import Ends
from bridge.settings import RabbitMQ


def ends(settings: RabbitMQ) -> Ends:
    """What ``bridge.lab.bench.processes.carry`` needs of RabbitMQ."""
    return Ends(partial(Generator, settings), partial(Meter, settings))
