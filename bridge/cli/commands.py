"""All commands. A new one is a module with a function of its name, and a line here.

The module of ``list`` is called ``listing``: a module ``list`` in this package would hide Python's own in it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.bench import bench
from bridge.cli.cancel import cancel
from bridge.cli.check import check
from bridge.cli.compare import compare
from bridge.cli.deliver import deliver
from bridge.cli.demo import demo
from bridge.cli.levels import levels
from bridge.cli.listing import list_messages
from bridge.cli.options import example
from bridge.cli.reschedule import reschedule
from bridge.cli.retry import retry
from bridge.cli.run import run
from bridge.cli.send import send
from bridge.cli.setup import setup
from bridge.cli.show import show
from bridge.cli.stats import stats

EXIT_CODES = (
    "\b\nExit codes: 0 fine, 1 failed, 2 wrong usage or settings, 3 not found,\n"
    "4 a broker or Redis cannot be reached, 5 refused (on its way already, or not allowed), 130 interrupted."
)

# Plain help: rich would read [routes.orders] in it as markup. Plain tracebacks: rich's show local variables.
app = typer.Typer(
    help="Deliver messages later: a delay bridge beside RabbitMQ or Kafka, with Redis as its store.",
    epilog=EXIT_CODES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def first(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"postdate {installed('postdate')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(epilog=example("postdate run --config postdate.toml"))(run)
app.command(epilog=example("postdate check --config postdate.toml"))(check)
app.command(epilog=example("postdate setup --dry-run", "postdate setup"))(setup)
app.command(epilog=example("postdate send orders '{\"n\": 1}' --routing-key new --in 5m"))(send)
app.command("list", epilog=example("postdate list --route orders --due-before 1h", "postdate list --state dead"))(
    list_messages
)
app.command(epilog=example("postdate show 1gd4r5kq2000ab3c9d00", "postdate show --key order-4711 --route orders"))(show)
app.command(
    epilog=example("postdate cancel --key order-4711 --route orders", "postdate cancel --dead --reason bad_header")
)(cancel)
app.command(epilog=example("postdate reschedule 1gd4r5kq2000ab3c9d00 --at 2026-12-24T18:00:00Z"))(reschedule)
app.command(epilog=example("postdate deliver --key order-4711 --route orders"))(deliver)
app.command(epilog=example("postdate retry 1gd4r5kq2000ab3c9d00", "postdate retry --route orders --reason unroutable"))(
    retry
)
app.command(epilog=example("postdate stats", "postdate stats -o json"))(stats)
app.add_typer(levels, name="levels")
app.command(epilog=example("postdate demo", "make demo"))(demo)
app.command(epilog=example("postdate bench --quick", "postdate bench --only rate --rates 2000 --runs 3"))(bench)
app.command(epilog=example("postdate compare --quick", "postdate compare --modes redis,ttl --rates 500"))(compare)
