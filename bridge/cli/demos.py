"""``postdate demo``: six messages on their way, live in the terminal."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from bridge.cli.options import ConfigOption
from bridge.lab.demo import demo_on, judge, lesson, play, stay, summary, view_on
from bridge.lab.trial import answering, every_signal_interrupts
from bridge.settings import settings_from
from bridge.telemetry.printable import say


def demo(
    config: ConfigOption = None,
    stays: Annotated[bool, typer.Option("--stay", help="Go on with a trickle of messages until Ctrl-C.")] = False,
) -> None:
    """Send six messages through a bridge of its own and watch them. Takes about ten seconds.

    It uses Redis and the brokers of the settings, RabbitMQ and Kafka, if they answer, and prints the address of its
    page. Its queues, topics and keys have unique names and are deleted at the end.
    """
    settings = settings_from(config)
    with every_signal_interrupts():
        console = Console()
        brokers = answering(settings)
        say("Starting a bridge.")
        with ExitStack() as ends:
            demos = [ends.enter_context(demo_on(settings, broker)) for broker in brokers]
            for show in demos:
                say(f"Page for {show.found.title}: {show.page}")
            with view_on(console) as view:
                play(demos, view)
            found = [show.found for show in demos]
            for ended in found:
                console.out("\n" + summary(ended, console.width), highlight=False)
            if stays:
                pages = ", ".join(show.page for show in demos)
                say(f"\nMessages go on until Ctrl-C. Open {pages}")
                stay(demos)
        judge(found)
    print(f"\n{lesson(brokers)}")
