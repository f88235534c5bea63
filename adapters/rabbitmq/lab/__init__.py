"""RabbitMQ's part of demo, bench and compare."""

from __future__ import annotations

from adapters.rabbitmq.lab.demo_clients import RabbitConsumer, RabbitProducer
from adapters.rabbitmq.lab.load_meter import generate, measure
from adapters.rabbitmq.lab.trial_objects import RabbitTrialBroker
from bridge.lab.ports import BrokerLab, RunNames


def names(base: str) -> RunNames:
    return RunNames(f"{base}.delay", base, f"{base}.queue", f"{base}.intake", base)


LAB = BrokerLab(names, RabbitTrialBroker, RabbitProducer, RabbitConsumer, generate, measure)
