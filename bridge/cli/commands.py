"""The table of all commands. A new command is a module with a function, and an entry here.

`postdate --help` prints the summaries of this table and imports no command: the brokers' client libraries, which most
commands need, take longer to import than all else. The module of `list` is called ``listing``: a module ``list`` in
this package would hide Python's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from bridge.cli.options import declared, example


class Command(NamedTuple):
    """Where a command is (module:function), and its help as far as it is known without an import. ``summary`` is the
    first sentence of the function's docstring."""

    target: str
    summary: str
    examples: tuple[str, ...] = ()


COMMANDS = {
    "run": Command(
        "bridge.cli.run:run", "Run the bridge until SIGTERM or SIGINT.", ("postdate run --config postdate.toml",)
    ),
    "serve": Command(
        "bridge.cli.serve:serve",
        "Serve the page, the API and metrics without a bridge.",
        ("postdate serve --config postdate.toml",),
    ),
    "check": Command(
        "bridge.cli.check:check",
        "Check settings, store and broker topology.",
        ("postdate check --config postdate.toml",),
    ),
    "doctor": Command(
        "bridge.cli.doctor:doctor",
        "Find out what is wrong, and say what to do.",
        ("postdate doctor", "postdate doctor --probe", "postdate doctor -o json"),
    ),
    "healthcheck": Command(
        "bridge.cli.healthcheck:healthcheck",
        "Ask the running bridge whether it is ready.",
        ("postdate healthcheck", "postdate healthcheck --live"),
    ),
    "plan": Command(
        "bridge.cli.plan:plan",
        "Compute what a load needs: memory, processes, shards.",
        ("postdate plan --rate 500 --size 2kB --delay 7d", "postdate plan --rate 500 --delay 7d --check"),
    ),
    "setup": Command(
        "bridge.cli.declare:setup",
        "Create the exchanges, queues and topics that the routes need.",
        ("postdate setup --dry-run", "postdate setup"),
    ),
    "send": Command(
        "bridge.cli.send:send",
        "Park a message in the store, without a broker.",
        ("postdate send orders '{\"n\": 1}' --routing-key new --in 5m",),
    ),
    "list": Command(
        "bridge.cli.listing:list_messages",
        "List messages, the next due first.",
        ("postdate list --route orders --due-before 1h", "postdate list --state dead"),
    ),
    "show": Command(
        "bridge.cli.show:show",
        "Show messages with their properties, headers and body.",
        ("postdate show 1gd4r5kq2000ab3c9d00", "postdate show --key order-4711 --route orders"),
    ),
    "cancel": Command(
        "bridge.cli.acts:cancel",
        "Delete parked messages or dead letters.",
        (
            "postdate cancel --key order-4711 --route orders",
            "postdate cancel --route orders --header tenant=acme --note 'wrong campaign'",
            "postdate cancel --state dead --reason bad_header --yes",
        ),
    ),
    "reschedule": Command(
        "bridge.cli.acts:reschedule",
        "Change when parked messages are due.",
        (
            "postdate reschedule 1gd4r5kq2000ab3c9d00 --at 2026-12-24T18:00:00Z",
            "postdate reschedule --route orders --due-before 1h --in 2h",
        ),
    ),
    "deliver": Command(
        "bridge.cli.acts:deliver",
        "Make parked messages due now.",
        (
            "postdate deliver --key order-4711 --route orders",
            "postdate deliver --route orders --due-before 1h --max-rate 500",
        ),
    ),
    "retry": Command(
        "bridge.cli.acts:retry",
        "Park dead letters again, due now.",
        ("postdate retry 1gd4r5kq2000ab3c9d00", "postdate retry --route orders --reason unroutable"),
    ),
    "restore": Command(
        "bridge.cli.restore:restore_messages",
        "Bring back what Redis has lost.",
        (
            "postdate restore --dry-run",
            "postdate restore orders --due-before 1h --max-rate 500 --yes",
            "postdate restore --cancelled --key order-4711",
            "postdate restore payments --from-intake --since 2h --yes",
        ),
    ),
    "pause": Command(
        "bridge.cli.orders:pause",
        "Deliver nothing of these routes until they are resumed.",
        ("postdate pause orders --note 'the bank is down'",),
    ),
    "resume": Command(
        "bridge.cli.orders:resume",
        "End the pause or drain of these routes.",
        ("postdate resume orders", "postdate resume --all --yes"),
    ),
    "drain": Command(
        "bridge.cli.orders:drain", "Take nothing more in, and deliver what is parked.", ("postdate drain orders",)
    ),
    "export": Command(
        "bridge.cli.export:export",
        "Write all messages of the store to standard output.",
        ("postdate export > backup.jsonl", "postdate export --route orders | gzip > orders.jsonl.gz"),
    ),
    "import": Command(
        "bridge.cli.importing:import_messages",
        "Put back the messages of a file of `postdate export`.",
        ("postdate import backup.jsonl --dry-run", "postdate import backup.jsonl --route orders --overdue skip"),
    ),
    "stats": Command(
        "bridge.cli.stats:stats",
        "Show message counts, memory use and the health of each instance.",
        ("postdate stats", "postdate stats -o json"),
    ),
    "audit": Command(
        "bridge.cli.audit:audit",
        "Show what people did to messages and routes, newest first.",
        ("postdate audit --limit 20",),
    ),
    "demo": Command(
        "bridge.cli.demos:demo",
        "Send six messages through a bridge of its own and watch them.",
        ("postdate demo", "make demo"),
    ),
    "bench": Command(
        "bridge.cli.bench:bench",
        "Measure throughput, lateness and order with a bridge of its own.",
        ("postdate bench --quick", "postdate bench --only rate --rates 2000 --runs 3"),
    ),
    "compare": Command(
        "bridge.cli.compare:compare",
        "Compare ways to delay messages on your own RabbitMQ.",
        ("postdate compare --quick", "postdate compare --modes redis,ttl --rates 500"),
    ),
    "migrate": Command("bridge.cli.migrate:migrate", "Move to postdate from other ways to delay messages."),
    "levels": Command("bridge.cli.levels:levels", "Manage the queues and topics of routes without a store."),
}

#: The commands that can act over the API.
_OVER_HTTP = frozenset(
    (
        *("list", "show", "cancel", "reschedule", "deliver", "retry", "restore"),
        *("send", "stats", "audit", "pause", "resume", "drain", "doctor"),
    )
)

_ApiOption = Annotated[
    str | None,
    typer.Option(
        "--api",
        metavar="URL",
        help="Act over the API of a running postdate, not on Redis. Default: $POSTDATE_API. "
        "Its token: $POSTDATE_API_TOKEN, or the file $POSTDATE_API_TOKEN_FILE.",
    ),
]

_EXIT_CODES = (
    "\b\nExit codes: 0 success, 1 failed, 2 wrong usage or settings, 3 not found,\n"
    "4 broker, Redis or API unreachable, 5 refused (being sent, or not allowed),\n"
    "130 interrupted."
)


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and summary, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, short_help=command.summary, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find a command, import it and take it out of its module."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _imported(name) if name else command, rest


def _imported(name: str) -> Any:
    """Return a command as typer runs it: the function of the table, or its group."""
    command = COMMANDS[name]
    module, _, attribute = command.target.partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        return get_command(target)
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    group.command(name, epilog=example(*command.examples))(_with_api(target) if name in _OVER_HTTP else target)
    return get_command(group)


def _with_api(target: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --api to a command. The command does not see it: its desk is chosen by it."""

    @wraps(target)
    def command(*, api: str | None, **given: Any) -> Any:
        import_module("bridge.operate.remote").NAMED.set(api or "")  # slow to import, and --help does not need it
        return target(**given)

    option = inspect.Parameter("api", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ApiOption)
    return declared(command, [*inspect.signature(target, eval_str=True).parameters.values(), option])


# Plain help: rich would read [routes.orders] in it as markup. Plain tracebacks: rich's show local variables.
app = typer.Typer(
    cls=LazyGroup,
    help="Deliver messages later: a delay bridge for RabbitMQ and Kafka that stores waiting messages in Redis.",
    epilog=_EXIT_CODES,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def first(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Print the version, or the help where no command is given."""
    if version:
        installed = import_module("importlib.metadata")  # slow to import, and only this option needs it
        typer.echo(f"postdate {installed.version('postdate')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
