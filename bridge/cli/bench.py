"""``postdate bench``: the options, and the report on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import as_json
from bridge.core.errors import PostdateError
from bridge.lab.bench import Bench, BenchPlan, base_plan, complaints, document, notes, table, with_options
from bridge.lab.command import about, check_file, reporting, write_whole
from bridge.lab.load_runner import ProgressBar
from bridge.lab.trial import Trial, answering, every_signal_interrupts, new_names, trial_settings
from bridge.settings import Settings, settings_from
from bridge.settings.model import TITLES, BrokerKind
from bridge.telemetry.printable import say


def bench(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    broker: Annotated[
        BrokerKind | None,
        typer.Option("--broker", help="Only this broker. Default: those with routes, or both if there are none."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One row of each kind, half a minute for each broker.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="KINDS", help="Only these kinds: plain, share, rate, burst, backlog; with commas."
        ),
    ] = None,
    shares: Annotated[
        str | None, typer.Option("--shares", metavar="LIST", help="Shares of the plain rate to hold, e.g. 0.12,0.07.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LIST", help="Messages per second to hold, e.g. 500,2000,5000.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="How long to hold each rate, e.g. 60s.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option("--burst", metavar="LIST", help="Messages due at one moment, e.g. 20000,100000.")
    ] = None,
    backlog: Annotated[int | None, typer.Option("--backlog", min=1, help="Messages that stay parked.")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each row. The report has their median.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The JSON file. Default: ./bench-DATE-TIME.json.")
    ] = None,
) -> None:
    """Measure throughput, lateness and order with a bridge of its own.

    It deletes its queues, topics and keys at the end. Exit code 1 if a message was lost, duplicated, early or out of
    order. A full run takes up to 15 minutes for each broker. On Kafka it needs 2 GB of disk.
    """
    settings = settings_from(config)
    if out:
        check_file(out)
    routed: list[BrokerKind] = [kind for kind in TITLES if settings.routes_of(kind)]
    required: list[BrokerKind] = [broker] if broker else routed
    plans: dict[BrokerKind, BenchPlan] = {
        kind: with_options(base_plan(kind, quick), only, shares, rates, duration, burst, backlog, runs)
        for kind in TITLES
    }
    _measure(settings, plans, required, output, out)


def _measure(
    settings: Settings,
    plans: Mapping[BrokerKind, BenchPlan],
    required: Sequence[BrokerKind],
    output: Output,
    out: Path | None,
) -> None:
    """Measure and report, even if it is interrupted. Raises ``PostdateError`` for faults."""
    brokers = answering(settings, required)
    if settings.journal.url.get_secret_value():
        say("The journal of the settings belongs to another store: postdate is measured without one.")
    benches: list[Bench] = []
    steps = sum(plans[broker].steps() for broker in brokers)
    report = partial(_report, benches, len(brokers), output, out)
    # The report comes last, after the bar is gone and everything is deleted.
    with every_signal_interrupts(), reporting(report), ProgressBar(steps) as bar:
        for broker in brokers:
            names = new_names("bench", broker)
            own = trial_settings(settings, names, broker=broker, log={"level": "warning"})
            with Trial(own, names) as trial:
                benches.append(Bench(plans[broker], trial, bar))
                with bar.naming_steps():
                    benches[-1].run()
        if wrong := [text for bench in benches for text in _faults(bench)]:
            raise PostdateError(f"Messages were not delivered as they must be. {'; '.join(wrong)}.")


def _faults(bench: Bench) -> list[str]:
    return [f"{bench.trial.title}, {text}" for text in complaints(bench.rows)]


def _report(benches: Sequence[Bench], brokers: int, output: Output, out: Path | None) -> None:
    """Write the document to the file and print it. Nothing happens without any figures.

    Raises ``PostdateError`` if the file cannot be written, after printing.
    """
    if not any(row.runs for bench in benches for row in bench.rows):
        return
    now = datetime.now().astimezone()
    versions = {name: number for bench in benches for name, number in bench.versions.items()}
    ok = len(benches) == brokers and all(bench.complete and not _faults(bench) for bench in benches)
    found = document(benches, about(now, versions), ok)
    file = out or Path(f"bench-{now:%Y-%m-%d-%H%M%S}.json")
    try:
        write_whole(file, json.dumps(found, indent=1) + "\n")
    finally:
        if output is Output.TEXT:
            _print(benches)
        else:
            as_json(output, found)
    say(f"Written to {file}.")


def _print(benches: Sequence[Bench]) -> None:
    console = Console()
    for bench in benches:
        console.print(table(bench.trial.title, bench.rows))
        for note in notes(bench.rows):
            console.out(note, highlight=False)
        console.out("")
