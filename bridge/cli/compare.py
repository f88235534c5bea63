"""``postdate compare``: the ways to wait, measured on the broker of the settings."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.lab.compare.modes import Mode
    from bridge.lab.compare.plan import Plan
    from bridge.lab.compare.result import Result
    from bridge.settings import Settings


def compare(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    quick: Annotated[bool, typer.Option("--quick", help="A look, one to two minutes: one rate, short delays.")] = False,
    modes: Annotated[
        str | None,
        typer.Option(
            "--modes", metavar="LIST", help="Of plain, redis, levels, alone, ladder, plugin, ttl; with commas."
        ),
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LIST", help="Messages a second to hold: 500,2000.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="How long each rate is held, such as 15s.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, max=1_000_000, help="Messages of a flood and of a burst.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the delays, the same in each mode.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where the report goes; else ./compare-DATE-TIME.")
    ] = None,
) -> None:
    """Compare ways to delay messages on your own RabbitMQ. All get the same messages.

    Without a delay for scale, postdate's own modes, its levels also without a running postdate (alone), the
    delayed-message plugin where the broker has it, and one queue with a TTL on each message. Writes compare.json,
    table.md, report.html and the pictures. Exit code 1 if one of postdate's modes lost, doubled or hastened a message.
    Its queues, exchanges and keys are removed at the end.
    """
    from bridge.app.wiring import settings_from
    from bridge.cli.compare_numbers import chosen, comparison_plan

    settings = settings_from(config)
    _compare(settings, comparison_plan(quick, rates, duration, count, seed), chosen(modes), output, out)


def _compare(settings: Settings, plan: Plan, wanted: list[str], output: Output, out: Path | None) -> None:
    """Raises ``PostdateError`` for messages that were not as they must be. What it knows is written in any case."""
    from bridge.cli.compare_files import before_it_starts, folder_for
    from bridge.cli.report_file import told
    from bridge.core.errors import PostdateError, Refused
    from bridge.lab.bar import Bar
    from bridge.lab.bench_parts import own_versions
    from bridge.lab.compare.modes import BY_NAME, as_set, left_out
    from bridge.lab.compare.plan import load_sentence
    from bridge.lab.compare.result import Result, complaints
    from bridge.lab.compare_parts import check_servers, measurement, why_no_plugin
    from bridge.lab.trial.open import every_signal_interrupts
    from bridge.telemetry.printable import say

    results: list[Result] = []
    versions = own_versions()
    with every_signal_interrupts():
        no_plugin = why_no_plugin(settings) if "plugin" in wanted else ""
        how, longest_ms = settings.levels.rounding, max(longest for _, longest in plan.delays_ms())
        missing = left_out(wanted, no_plugin, settings.headers.levels, longest_ms, how)
        for name, reason in missing.items():
            say(f"Left out: {name}, because {reason}.")
        found = [as_set(BY_NAME[name], how) for name in wanted if name not in missing]
        if not found:
            raise Refused("None of these modes can be measured here.")
        check_servers(settings, found)
        folder = folder_for(out, datetime.now())
        if hint := before_it_starts():
            say(hint)
        say(load_sentence(plan, found))
        report = partial(_report, results, found, missing, plan, settings, versions, output, folder)
        # After the bar has gone and everything is removed, also when a step fails or somebody loses patience.
        with told(report), Bar(len(plan.titles(found))) as bar:
            for mode in found:
                with measurement(settings, plan, mode, bar, versions) as measuring:
                    results.append(Result(mode, measuring.steps))
                    with bar.named():
                        measuring.run()
            if wrong := complaints(results):
                raise PostdateError(f"Messages were not as they must be. {'; '.join(wrong)}.")


def _report(
    results: list[Result],
    modes: list[Mode],
    missing: dict[str, str],
    plan: Plan,
    settings: Settings,
    versions: dict[str, str],
    output: Output,
    folder: Path,
) -> None:
    """Write it all to the folder, and print it; where nothing was measured, no folder is left.

    The figures are written in any case; who interrupts the pictures, which take seconds, is told that they are missing.
    Raises ``PostdateError`` for what cannot be written, after it was printed.
    """
    from bridge.cli import compare_files
    from bridge.lab.bench.machine import machine
    from bridge.lab.compare.result import document, unfinished
    from bridge.lab.trial.open import uninterrupted
    from bridge.telemetry.printable import say

    measured = [result for result in results if result.steps]
    if not measured:
        with suppress(OSError):  # it was there before, and has something in it
            folder.rmdir()
        return
    now = datetime.now().astimezone()
    about = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions,
        "settings": compare_files.settings_that_matter(settings),
    }
    open_ends = unfinished(results, modes, plan)
    found = document(measured, missing, plan, about, not open_ends)
    try:
        with uninterrupted():
            compare_files.write_figures(folder, found, measured, plan, about)
        say("The pictures are drawn ...")
        written = compare_files.write_pictures(folder, measured, missing, plan, about, open_ends)
    except KeyboardInterrupt:
        with uninterrupted():
            say(f"Written to {folder}: compare.json and table.md, and no report: the pictures were interrupted.")
        raise
    finally:
        _print(found, measured, plan, output)
        for sentence in open_ends:
            say(sentence)
    say(written)


def _print(found: dict[str, Any], measured: list[Result], plan: Plan, output: Output) -> None:
    from bridge.cli import output as to
    from bridge.cli.compare_files import print_table

    if output is Output.TEXT:
        print_table(measured, plan)
    else:
        (to.document if output is Output.JSON else to.line)(found)
