"""``postdate demo``: the whole of it in a few seconds, against real brokers and a real store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bridge.cli.options import ConfigOption

if TYPE_CHECKING:
    from bridge.lab.demo.show import Show
    from bridge.lab.demo_parts import Part

_LOOK_S = 0.1
_OVER_S = 9.0


def demo(config: ConfigOption = None) -> None:
    """Send six messages through a bridge of its own and watch them. Takes fifteen seconds.

    It uses the Redis and the brokers of the settings, of RabbitMQ and Kafka those that answer, under names of its own
    that are removed at the end.
    """
    from rich.console import Console

    from bridge.app.wiring import settings_from
    from bridge.lab.demo.lesson import lesson
    from bridge.lab.demo.show import show_on, summary
    from bridge.lab.demo_parts import Part
    from bridge.lab.trial.open import answering, every_signal_interrupts
    from bridge.telemetry.printable import say

    settings = settings_from(config)
    with every_signal_interrupts():
        console = Console()
        brokers = answering(settings)
        say("Starting a bridge of its own.")
        with ExitStack() as ends:
            parts = [ends.enter_context(Part(settings, broker)) for broker in brokers]
            with show_on(console) as show:
                _play(parts, show)
        for part in parts:
            console.out("\n" + summary(part.act, console.width), highlight=False)
        _judge(parts)
    print(f"\n{lesson(brokers)}")


def _play(parts: Sequence[Part], show: Show) -> None:
    """Send, watch and cancel, until all is settled or the time is over."""
    from bridge.lab.demo.story import CANCEL_AFTER_S

    now_ms = parts[0].now_ms()
    for part in parts:
        part.send(now_ms)
    began = time.monotonic()
    cancelled = False
    while time.monotonic() < began + _OVER_S:
        for part in parts:
            part.look()
        show.look([part.act for part in parts], parts[0].now_ms())
        if all(part.settled() for part in parts):
            break
        if not cancelled and time.monotonic() > began + CANCEL_AFTER_S:
            cancelled = True
            for part in parts:
                part.cancel()
        time.sleep(_LOOK_S)


def _judge(parts: Sequence[Part]) -> None:
    """Raise ``PostdateError`` if something did not come out as it must."""
    from bridge.core.errors import PostdateError
    from bridge.lab.demo.fate import complaints

    found = [text for part in parts for text in complaints(part.act.fates)]
    if found:
        raise PostdateError(f"This is not how it must come out: {'; '.join(found)}.")
