"""``postdate bench``: the yardstick, against the brokers and the store of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.lab.bar import Bar
    from bridge.lab.bench.measure import Bench
    from bridge.lab.bench.plan import Plan
    from bridge.settings import Settings
    from bridge.settings.model import BrokerKind


class Broker(StrEnum):
    """What ``--broker`` takes."""

    RABBITMQ = "rabbitmq"
    KAFKA = "kafka"


def bench(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    broker: Annotated[
        Broker | None,
        typer.Option("--broker", help="Only this one; else those that have routes, or both where there are none."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look: one row of each kind, half a minute for each broker.")
    ] = False,
    only: Annotated[
        str | None, typer.Option("--only", metavar="KINDS", help="Of plain, share, rate, burst, backlog; with commas.")
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option("--shares", metavar="LIST", help="Shares of the plain rate to hold: 0.12,0.07."),
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LIST", help="Messages a second to hold: 500,2000,5000.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="How long each rate is held, such as 60s.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option("--burst", metavar="LIST", help="Messages due at one moment: 20000,100000.")
    ] = None,
    backlog: Annotated[int | None, typer.Option("--backlog", min=1, help="Messages that are parked meanwhile.")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each row, whose median is told.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where the JSON goes; else ./bench-DATE-TIME.json.")
    ] = None,
) -> None:
    """Measure throughput, lateness and order with a bridge of its own.

    Exit code 1 if a message was lost, came twice, came early or out of its order. Its queues, topics and keys are
    removed at the end. All of it takes up to a quarter of an hour for each broker, and of Kafka 2 GB of disk meanwhile.
    """
    from bridge.app.wiring import settings_from
    from bridge.cli.numbers import a_plan
    from bridge.cli.report_file import check_place
    from bridge.lab.bench_parts import base_plan

    settings = settings_from(config)
    if out:
        check_place(out)
    routed: list[BrokerKind] = [kind.value for kind in Broker if settings.routes_of(kind.value)]
    required: list[BrokerKind] = [broker.value] if broker else routed
    plans: dict[BrokerKind, Plan] = {
        kind.value: a_plan(base_plan(kind.value, quick), only, shares, rates, duration, burst, backlog, runs)
        for kind in Broker
    }
    _measure(settings, plans, required, output, out)


class _Measured(NamedTuple):
    """One broker's part of a bench."""

    settings: Settings
    plan: Plan
    bench: Bench
    versions: dict[str, str]


def _measure(
    settings: Settings,
    plans: Mapping[BrokerKind, Plan],
    required: Sequence[BrokerKind],
    output: Output,
    out: Path | None,
) -> None:
    """Raises ``PostdateError`` for messages that were not as they must be. What it knows is written in any case."""
    from bridge.cli.report_file import told
    from bridge.core.errors import PostdateError
    from bridge.lab.bar import Bar
    from bridge.lab.bench_parts import steps_of
    from bridge.lab.trial.open import answering, every_signal_interrupts

    brokers = answering(settings, required)
    measured: list[_Measured] = []
    steps = sum(steps_of(plans[broker]) for broker in brokers)
    report = partial(_report, measured, len(brokers), output, out)
    # After the bar has gone and everything is removed, also when a row fails or somebody loses patience.
    with every_signal_interrupts(), told(report), Bar(steps) as bar:
        for broker in brokers:
            _measure_one(settings, broker, plans[broker], bar, measured)
        if wrong := [text for one in measured for text in _wrong(one)]:
            raise PostdateError(f"Messages were not as they must be. {'; '.join(wrong)}.")


def _measure_one(settings: Settings, broker: BrokerKind, plan: Plan, bar: Bar, measured: list[_Measured]) -> None:
    from bridge.lab.bench_parts import make_bench, versions
    from bridge.lab.trial.config import new_names, trial_settings
    from bridge.lab.trial.open import Trial

    names = new_names("bench", broker)
    own = trial_settings(settings, names, broker=broker, log={"level": "warning"})
    with Trial(own, names) as trial:
        bench = make_bench(plan, trial, bar)
        measured.append(_Measured(own, plan, bench, versions(trial)))
        with bar.named():
            bench.run()


def _wrong(measured: _Measured) -> list[str]:
    from bridge.lab.bench.report import complaints
    from bridge.settings.model import TITLES

    return [f"{TITLES[measured.settings.broker]}, {text}" for text in complaints(measured.bench.rows)]


def _report(measured: Sequence[_Measured], brokers: int, output: Output, out: Path | None) -> None:
    """Write it all to the file, and print it; nothing where nothing was measured. ``brokers``: so many there are.

    Raises ``PostdateError`` for a file that cannot be written, after it was printed.
    """
    import json

    from bridge.cli import output as to
    from bridge.cli.report_file import write_whole
    from bridge.lab.bench.machine import machine
    from bridge.lab.bench.report import document, section
    from bridge.telemetry.printable import say

    if not any(row.runs for one in measured for row in one.bench.rows):
        return
    now = datetime.now().astimezone()
    versions = {name: number for one in measured for name, number in one.versions.items()}
    about = {"date": now.isoformat(timespec="seconds"), "machine": machine(), "versions": versions}
    sections = {one.settings.broker: section(one.bench.rows, one.plan, one.settings) for one in measured}
    ok = len(measured) == brokers and all(one.bench.complete and not _wrong(one) for one in measured)
    found = document(sections, about, ok)
    file = out or Path(f"bench-{now:%Y-%m-%d-%H%M%S}.json")
    try:
        write_whole(file, json.dumps(found, indent=1) + "\n")
    finally:
        if output is Output.TEXT:
            _print(measured)
        else:
            (to.document if output is Output.JSON else to.line)(found)
    say(f"Written to {file}.")


def _print(measured: Sequence[_Measured]) -> None:
    """The tables and what there is to say about them."""
    from rich.console import Console

    from bridge.lab.bench.report import notes, table
    from bridge.settings.model import TITLES

    console = Console()
    for one in measured:
        console.print(table(TITLES[one.settings.broker], one.bench.rows))
        for note in notes(one.bench.rows):
            console.out(note, highlight=False)
        console.out("")
