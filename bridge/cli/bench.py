"""``postdate bench``: the yardstick, against the broker and the store of the settings."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.bench.measure import Bench
    from bridge.bench.plan import Plan
    from bridge.settings import Settings


def bench(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    quick: Annotated[bool, typer.Option("--quick", help="A look: one row of each kind, under a minute.")] = False,
    only: Annotated[
        str | None, typer.Option("--only", metavar="KINDS", help="Of plain, share, rate, burst, backlog; with commas.")
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option("--shares", metavar="LIST", help="Shares of the plain rate to hold: 0.25,0.18."),
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LIST", help="Messages a second to hold: 500,2000,5000.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="How long each rate is held, such as 60s.")
    ] = None,
    burst: Annotated[int | None, typer.Option("--burst", min=1, help="Messages due at one moment.")] = None,
    backlog: Annotated[int | None, typer.Option("--backlog", min=1, help="Messages that are parked meanwhile.")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each row, whose median is told.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where the JSON goes; else ./bench-DATE-TIME.json.")
    ] = None,
) -> None:
    """Measure throughput, lateness, bursts and a backlog, with a bridge of its own.

    Exit code 1 if a message was lost, came twice or came early. Its queues and keys are removed at the end.
    """
    from bridge.cli.numbers import a_plan
    from bridge.cli.wiring import settings_from

    settings = settings_from(config)
    _measure(settings, a_plan(quick, only, shares, rates, duration, burst, backlog, runs), output, out)


def _measure(settings: Settings, plan: Plan, output: Output, out: Path | None) -> None:
    """Raises ``PostdateError`` for messages that were not as they must be. What it knows is written in any case."""
    from bridge.bench.report import complaints
    from bridge.cli.bar import Bar
    from bridge.cli.bench_parts import make_bench, steps_of, versions
    from bridge.cli.trial import Trial, every_signal_interrupts
    from bridge.errors import PostdateError
    from bridge.trial.config import new_names, trial_settings

    names = new_names("bench")
    own = trial_settings(settings, names, log={"level": "warning"})
    with every_signal_interrupts(), ExitStack() as at_the_end, Bar(steps_of(plan)) as bar, Trial(own, names) as trial:
        measuring = make_bench(plan, trial, bar)
        # After the bar has gone and everything is removed, also when a row fails or somebody loses patience.
        at_the_end.callback(_report, measuring, plan, own, versions(trial), output, out)
        measuring.run()
    if wrong := complaints(measuring.rows):
        raise PostdateError(f"Messages were not as they must be. {'; '.join(wrong)}.")


def _report(
    measured: Bench, plan: Plan, settings: Settings, versions: dict[str, str], output: Output, out: Path | None
) -> None:
    """Write it all to the file, and print it; nothing where nothing was measured."""
    import json

    from rich.console import Console

    from bridge.bench.machine import machine
    from bridge.bench.report import document, notes, table
    from bridge.cli import output as to

    if not any(row.runs for row in measured.rows):
        return
    now = datetime.now().astimezone()
    about = {"date": now.isoformat(timespec="seconds"), "machine": machine(), "versions": versions}
    found = document(measured.rows, plan, settings, about, measured.complete)
    file = out or Path(f"bench-{now:%Y-%m-%d-%H%M%S}.json")
    file.write_text(json.dumps(found, indent=1) + "\n")
    if output is Output.TEXT:
        console = Console()
        console.print(table(measured.rows))
        for note in notes(measured.rows):
            console.out(note, highlight=False)
    else:
        (to.document if output is Output.JSON else to.line)(found)
    to.say(f"Written to {file}.")
