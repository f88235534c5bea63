"""``postdate compare``: the options, and the report on standard output and in a folder."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import as_json
from bridge.core.errors import PostdateError, Refused
from bridge.lab.command import about, make_folder, reporting, shared_settings
from bridge.lab.compare import check_redis, lacking, measurement
from bridge.lab.compare_modes import BY_NAME, ComparePlan, as_set, chosen_modes, left_out, load_sentence, with_options
from bridge.lab.compare_page import missing, write_figures, write_pictures
from bridge.lab.compare_result import ModeComparison
from bridge.lab.compare_table import print_table
from bridge.lab.compare_verdict import sentences
from bridge.lab.load_runner import ProgressBar
from bridge.lab.machine import own_versions
from bridge.lab.trial import every_signal_interrupts, uninterrupted
from bridge.settings import Settings, settings_from
from bridge.telemetry.printable import say


def compare(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    quick: Annotated[bool, typer.Option("--quick", help="One rate and short delays, one to two minutes.")] = False,
    modes: Annotated[
        str | None,
        typer.Option("--modes", metavar="LIST", help=f"Only these modes: {', '.join(BY_NAME)}; with commas."),
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="LIST", help="Messages per second to hold, e.g. 500,2000.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="How long to hold each rate, e.g. 15s.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, max=1_000_000, help="Messages in a flood and in a burst.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of the random delays.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The folder of the report. Default: ./compare-DATE-TIME."),
    ] = None,
) -> None:
    """Compare ways to delay messages on your own RabbitMQ. Every method gets the same messages.

    It compares postdate's modes, its levels without a running postdate (alone), quorum queues of RabbitMQ 4.4 that
    delay by themselves (unaided), the delayed-message plugin if the broker has it, and one queue with a TTL per
    message. Messages without a delay give the scale. It writes
    compare.json, table.md, report.html and pictures, and deletes its queues, exchanges and keys at the end. Exit code 1
    if a message of a postdate mode was lost, duplicated or early.
    """
    settings = settings_from(config)
    _measure(settings, with_options(quick, rates, duration, count, seed), chosen_modes(modes), output, out)


def _measure(settings: Settings, plan: ComparePlan, wanted: list[str], output: Output, out: Path | None) -> None:
    """Measure and report, even if it is interrupted. Raises ``PostdateError`` for faults."""
    versions = own_versions()
    with every_signal_interrupts():
        how, longest_ms = settings.levels.rounding, max(longest for _, longest in plan.delays_ms())
        absent = left_out(wanted, lacking(settings, wanted), settings.headers.levels, longest_ms, how)
        for name, reason in absent.items():
            say(f"Left out: {name}, because {reason}.")
        modes = [as_set(BY_NAME[name], how) for name in wanted if name not in absent]
        if not modes:
            raise Refused("None of these modes can be measured here.")
        check_redis(settings, modes)
        folder = out or Path(f"compare-{datetime.now():%Y-%m-%d-%H%M%S}")
        make_folder(folder)
        if hint := missing():
            say(hint)
        say(load_sentence(plan, modes))
        comparison = ModeComparison(plan, modes, absent)
        report = partial(_report, comparison, settings, versions, output, folder)
        # The report comes last, after the bar is gone and everything is deleted.
        with reporting(report), ProgressBar(len(plan.titles(modes))) as bar:
            for mode in modes:
                with measurement(settings, plan, mode, bar, versions) as measuring:
                    comparison.results.append(measuring.result)
                    measuring.run()
            if wrong := comparison.complaints():
                raise PostdateError(f"Messages were not delivered as they must be. {'; '.join(wrong)}.")


def _report(
    comparison: ModeComparison, settings: Settings, versions: dict[str, str], output: Output, folder: Path
) -> None:
    """Write everything to the folder and print it. Without any figures, remove the folder.

    The figures are always written. Drawing takes seconds: an interrupt there is reported with what is missing. Raises
    ``PostdateError`` if a file cannot be written, after printing.
    """
    if not comparison.measured:
        with suppress(OSError):  # it existed before and is not empty
            folder.rmdir()
        return
    comparison.about = about(datetime.now().astimezone(), versions) | {"settings": _report_settings(settings)}
    try:
        with uninterrupted():
            write_figures(folder, comparison)
        say("Drawing the pictures ...")
        written = write_pictures(folder, comparison)
    except KeyboardInterrupt:
        with uninterrupted():
            say(f"Written to {folder}: compare.json and table.md. No report: drawing was interrupted.")
        raise
    finally:
        if output is Output.TEXT:
            print_table(comparison)
        else:
            as_json(output, comparison.document(sentences(comparison)))
        for sentence in comparison.unfinished():
            say(sentence)
    say(written)


def _report_settings(settings: Settings) -> dict[str, Any]:
    """The settings that influence the figures. No addresses and no secrets."""
    return {
        **shared_settings(settings),
        "rabbitmq.queue_type": settings.rabbitmq.queue_type,
        "levels.queue_type": settings.levels.queue_type or settings.rabbitmq.queue_type,
        "levels.rounding": settings.levels.rounding,
    }
