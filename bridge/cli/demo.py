"""``postdate demo``: six messages on their way, live in the terminal."""

from __future__ import annotations

from contextlib import ExitStack

from rich.console import Console

from bridge.cli.options import ConfigOption
from bridge.lab.demo import BrokerDemo, judge, lesson, play, summary, view_on
from bridge.lab.trial import answering, every_signal_interrupts
from bridge.settings import settings_from
from bridge.telemetry.printable import say


def demo(config: ConfigOption = None) -> None:
    """Send six messages through a bridge of its own and watch them. Takes about ten seconds.

    It uses Redis and the brokers of the settings, RabbitMQ and Kafka, if they answer. Its queues, topics and keys have
    unique names and are deleted at the end.
    """
    settings = settings_from(config)
    with every_signal_interrupts():
        console = Console()
        brokers = answering(settings)
        say("Starting a bridge.")
        with ExitStack() as ends:
            demos = [ends.enter_context(BrokerDemo(settings, broker)) for broker in brokers]
            with view_on(console) as view:
                play(demos, view)
        found = [one.found for one in demos]
        for one in found:
            console.out("\n" + summary(one, console.width), highlight=False)
        judge(found)
    print(f"\n{lesson(brokers)}")
