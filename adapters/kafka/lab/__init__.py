"""Kafka's part of demo and bench. ``bridge.lab.ports.BrokerLab`` describes each method."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.kafka.lab.demo_clients import KafkaConsumer, KafkaProducer
from adapters.kafka.lab.load_meter import KafkaGenerator, KafkaMeter
from adapters.kafka.lab.trial_objects import KafkaTrialBroker
from bridge.lab.load import Load
from bridge.lab.ports import BenchNumbers, BrokerLab, Received, RunNames
from bridge.settings import Settings


@dataclass(frozen=True)
class KafkaLab:
    """Opens what the instruments need on Kafka."""

    settings: Settings

    def trial(self, names: RunNames) -> KafkaTrialBroker:
        return KafkaTrialBroker(self.settings.kafka, names)

    def producer(self, front: str) -> KafkaProducer:
        return KafkaProducer(self.settings.kafka, front)

    def consumer(self, queue: str, received: Received) -> KafkaConsumer:
        return KafkaConsumer(self.settings.kafka, queue, received)

    def generator(self, load: Load) -> KafkaGenerator:
        return KafkaGenerator(self.settings.kafka, load)

    def meter(self, load: Load) -> KafkaMeter:
        return KafkaMeter(self.settings.kafka, load)


BENCH = BenchNumbers(
    full={
        "shares": (0.12, 0.07),
        "rates": (500, 2000),
        "plain": 1_000_000,
        "bursts": (20_000, 100_000),
        "window": 20_000,
        "keys": 1000,
    },
    quick={"shares": (0.12,), "plain": 200_000, "bursts": (20_000,)},
)


def names(base: str) -> RunNames:
    """The topics of one run."""
    return RunNames(f"{base}.delay", base, base, "", base)


def open_lab(settings: Settings) -> BrokerLab:
    """The lab for these settings, not connected yet."""
    return KafkaLab(settings)
