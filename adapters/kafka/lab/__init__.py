"""Kafka's part of demo and bench."""

from __future__ import annotations

from adapters.kafka.lab.demo_clients import KafkaConsumer, KafkaProducer
from adapters.kafka.lab.load_meter import generate, measure
from adapters.kafka.lab.trial_objects import KafkaTrialBroker
from bridge.lab.ports import BrokerLab, RunNames

_FULL = {
    "shares": (0.12, 0.07),
    "rates": (500, 2000),
    "plain": 1_000_000,
    "bursts": (20_000, 100_000),
    "window": 20_000,
    "keys": 1000,
}
_QUICK = {"shares": (0.12,), "plain": 200_000, "bursts": (20_000,)}


def names(base: str) -> RunNames:
    return RunNames(f"{base}.delay", base, base, "", base)


LAB = BrokerLab(names, KafkaTrialBroker, KafkaProducer, KafkaConsumer, generate, measure, _FULL, _QUICK)
