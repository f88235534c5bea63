"""A load generator and a lateness meter for Kafka, each a process of its own.

Both use aiokafka for what is done once (who leads what, TLS, passwords) and for the codec of batches, and leave out its
producer and its consumer: these would take more of the machine's cores than the thing that is measured.
"""

from functools import partial

from adapters.kafka.lab.generator import Generator
from adapters.kafka.lab.meter import Meter
from bridge.lab.bench.processes import Ends
from bridge.settings import Kafka


def ends(settings: Kafka) -> Ends:
    """What ``bridge.lab.bench.processes.carry`` needs of Kafka."""
    return Ends(partial(Generator, settings), partial(Meter, settings))
