"""``postdate plan``: what a load needs, by the measured figures."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.acting import operate
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.core.errors import FAILED, SettingsError
from bridge.delay.duration import read_duration_ms
from bridge.operate.sizing import PlannedLoad, compared, needs
from bridge.settings import Settings, settings_from
from bridge.settings.model import BrokerKind
from bridge.settings.values import size_in_bytes
from bridge.telemetry.printable import say


def plan(
    rate: Annotated[float, typer.Option(min=0.001, metavar="N", help="Delayed messages a second.")],
    delay: Annotated[str, typer.Option(metavar="DURATION", help="How long a message waits on average, e.g. 7d.")],
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a message's body, e.g. 2kB.")] = "256B",
    kafka: Annotated[bool, typer.Option("--kafka", help="For Kafka. Default: the broker of the routes.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare with what runs. Exit code 1: it is not enough.")] = (
        False
    ),
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compute what a load needs: memory, processes, shards.

    The figures are those of the manual's section Sizing, measured on two cores.
    """
    settings = settings_from(config)
    load = _load(settings, rate, delay, size, kafka)
    if not check:
        found = [need.as_dict() for need in needs(load, settings)]
        rows(output, ["what", "value", "because"], found)
        return
    stats = operate(settings, lambda operator: operator.stats())
    judged = list(compared(load, settings, stats))
    rows(output, ["state", "text"], [{"state": "OK" if enough else "FAIL", "text": text} for enough, text in judged])
    if not all(enough for enough, _ in judged):
        say("What runs is less than the plan.")
        raise typer.Exit(FAILED)


def _load(settings: Settings, rate: float, delay: str, size: str, kafka: bool) -> PlannedLoad:
    broker: BrokerKind = "kafka" if kafka or (settings.routes and not settings.routes_of("rabbitmq")) else "rabbitmq"
    try:
        delay_ms = read_duration_ms(delay)
    except ValueError:
        raise SettingsError('--delay must be a duration with a unit, such as "30s" or "7d".') from None
    try:
        return PlannedLoad(broker, rate, size_in_bytes(size.upper()), delay_ms)
    except ValueError:
        raise SettingsError('--size must be a size with a unit, such as "256B" or "2kB".') from None
