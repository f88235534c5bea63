"""``postdate demo``: the whole of it in ten seconds, against a real broker and a real store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bridge.cli.options import ConfigOption

if TYPE_CHECKING:
    from bridge.cli.trial import Trial
    from bridge.demo.fate import Fate
    from bridge.demo.show import Show

_LOOK_S = 0.1
_OVER_S = 9.0


def demo(config: ConfigOption = None) -> None:
    """Send six messages through a bridge of its own, and watch what becomes of them. Takes ten seconds.

    It uses the RabbitMQ and the Redis of the settings, under names of its own that are removed at the end.
    """
    from rich.console import Console

    from bridge.cli.output import say
    from bridge.cli.trial import Trial, every_signal_interrupts
    from bridge.cli.wiring import settings_from
    from bridge.demo.show import LESSON, show_on, summary
    from bridge.trial.config import new_names, trial_settings

    names = new_names("demo")
    # The messages of a demo may be lost, so a Redis that writes nothing to its disk will do.
    settings = trial_settings(
        settings_from(config),
        names,
        redis={"durability": "none", "shards": 1},
        bridge={"workers": 1, "shutdown_grace": 2000},
        headers={"audit": True, "on_bad": "dead", "on_same_key": "replace"},
        log={"level": "warning"},
    )
    with every_signal_interrupts():
        console = Console()
        say("Starting a bridge of its own.")
        with Trial(settings, names) as trial, show_on(console) as show:
            fates = _play(trial, show)
        console.out("\n" + summary(fates, console.width), highlight=False)
        _judge(fates)
    print(f"\n{LESSON}")


def _play(trial: Trial, show: Show) -> list[Fate]:
    """Send, watch and cancel, until all is settled or the time is over."""
    from adapters.rabbitmq.actors import Consumer, Producer
    from bridge.demo.fate import Fate
    from bridge.demo.story import CANCEL_AFTER_S, CANCELLED_KEY, orders

    fates = [Fate(order) for order in orders(round(trial.now_ms()))]
    producer = Producer(trial.settings.rabbitmq, trial.names.front)
    consumer = Consumer(trial.settings.rabbitmq, trial.names.queue, _receiver(trial, fates))
    try:
        for fate in fates:
            fate.sent_ms = trial.now_ms()
            producer.publish(fate.order.name.encode(), fate.order.headers)
        began = time.monotonic()
        cancelled = False
        while time.monotonic() < began + _OVER_S:
            _look(trial, show, fates)
            if all(fate.settled(trial.now_ms()) for fate in fates):
                break
            if not cancelled and time.monotonic() > began + CANCEL_AFTER_S:
                cancelled = True
                producer.publish(b"", {"x-delay-cancel": CANCELLED_KEY})
                for fate in fates:
                    fate.cancel_sent = fate.order.headers.get("x-delay-key") == CANCELLED_KEY
            time.sleep(_LOOK_S)
    finally:
        consumer.close()
        producer.close()
    return fates


def _look(trial: Trial, show: Show, fates: list[Fate]) -> None:
    trial.bridge.check()
    trial.wait_for(trial.store.look_at_clock())
    found = trial.sightings()
    for fate in fates:
        fate.see(found.get(fate.order.name.encode()))
    show.look(fates, trial.now_ms())


def _receiver(trial: Trial, fates: list[Fate]) -> Callable[[bytes, Mapping[str, Any]], None]:
    from bridge.demo.fate import Arrival

    by_body = {fate.order.name.encode(): fate for fate in fates}

    def received(body: bytes, headers: Mapping[str, Any]) -> None:
        at_ms = trial.now_ms()
        if body in by_body:
            by_body[body].arrivals.append(Arrival(at_ms, headers.get("x-delay-due")))

    return received


def _judge(fates: list[Fate]) -> None:
    """Raise ``PostdateError`` if something did not come out as it must."""
    from bridge.demo.fate import complaints
    from bridge.errors import PostdateError

    found = complaints(fates)
    if found:
        raise PostdateError(f"This is not how it must come out: {'; '.join(found)}.")
