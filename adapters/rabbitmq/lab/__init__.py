"""RabbitMQ's part of demo, bench and compare. ``bridge.lab.ports.BrokerLab`` describes each method."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.rabbitmq.lab.demo_clients import RabbitConsumer, RabbitProducer
from adapters.rabbitmq.lab.load_meter import RabbitGenerator, RabbitMeter
from adapters.rabbitmq.lab.trial_objects import RabbitTrialBroker
from bridge.lab.load import Load
from bridge.lab.ports import BenchNumbers, BrokerLab, Received, RunNames
from bridge.settings import Settings


@dataclass(frozen=True)
class RabbitLab:
    """Opens what the instruments need on RabbitMQ."""

    settings: Settings

    def trial(self, names: RunNames) -> RabbitTrialBroker:
        return RabbitTrialBroker(self.settings, names)

    def producer(self, front: str) -> RabbitProducer:
        return RabbitProducer(self.settings.rabbitmq, front)

    def consumer(self, queue: str, received: Received) -> RabbitConsumer:
        return RabbitConsumer(self.settings.rabbitmq, queue, received)

    def generator(self, load: Load) -> RabbitGenerator:
        return RabbitGenerator(self.settings.rabbitmq, load)

    def meter(self, load: Load) -> RabbitMeter:
        return RabbitMeter(self.settings.rabbitmq, load)


BENCH = BenchNumbers(full={}, quick={})


def names(base: str) -> RunNames:
    """The exchanges and queues of one run."""
    return RunNames(f"{base}.delay", base, f"{base}.queue", f"{base}.intake", base)


def open_lab(settings: Settings) -> BrokerLab:
    """The lab for these settings, not connected yet."""
    return RabbitLab(settings)
