"""``postdate pause``, ``resume`` and ``drain``: whether routes take messages in and deliver them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from getpass import getuser
from typing import Annotated, Any

import typer

from bridge.admin.desk import Desk
from bridge.admin.past import AuditEntry
from bridge.admin.select import no_store, refuse_without_store, unknown_route
from bridge.app.open_desk import at_desk
from bridge.app.remote import RemoteDesk
from bridge.cli.options import ConfigOption, Output, OutputOption, YesOption
from bridge.cli.output import rows as print_rows
from bridge.core.errors import FAILED, Refused, SettingsError
from bridge.core.orders import RouteOrders, RouteState
from bridge.delay.duration import write_moment
from bridge.settings import Settings, settings_from
from bridge.telemetry.printable import say

RoutesArgument = Annotated[list[str] | None, typer.Argument(metavar="ROUTE", help="Names of routes.")]
AllOption = Annotated[bool, typer.Option("--all", help="All routes that have a store.")]
WhyOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why. Other operators see it.")]

_COLUMNS = ["route", "state", "since", "by", "reason", "parked", "held"]


def pause(
    routes: RoutesArgument = None,
    every: AllOption = False,
    reason: WhyOption = "",
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Deliver nothing of these routes until they are resumed. Messages are still taken in and parked.

    The pause outlives restarts. All instances follow within about a second.
    """
    _order("pause", RouteState.PAUSED, routes, every, reason, yes, config, output)


def resume(
    routes: RoutesArgument = None,
    every: AllOption = False,
    reason: WhyOption = "",
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """End the pause or drain of these routes. Held messages are delivered now, in their order."""
    _order("resume", RouteState.RUNNING, routes, every, reason, yes, config, output)


def drain(
    routes: RoutesArgument = None,
    every: AllOption = False,
    reason: WhyOption = "",
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Take nothing more in, and deliver what is parked. New messages of these routes wait in the broker.

    A route is empty when its parked count is 0.
    """
    _order("drain", RouteState.DRAINING, routes, every, reason, yes, config, output)


def _order(
    verb: str,
    state: RouteState,
    routes: Sequence[str] | None,
    every: bool,
    reason: str,
    yes: bool,
    config: Any,
    output: Output,
) -> None:
    if bool(routes) is every:
        raise SettingsError("Name routes, or give --all.")
    settings = settings_from(config)
    by = _user()

    async def work(desk: Desk) -> list[dict[str, Any]]:
        if isinstance(desk, RemoteDesk):  # its settings count, and it refuses what it does not know
            names = list(dict.fromkeys(routes or await desk.stored_routes()))
        else:
            names = _meant(settings, await desk.orders(), routes, state)
        if every and not yes:
            _ask(verb, names)
        for name in names:
            await desk.order(name, state, by, reason)
            await desk.note(AuditEntry(by, "cli", verb, f"route {name}", reason=reason))
        return await _described(desk, names)

    print_rows(output, _COLUMNS, at_desk(settings, work))


def _meant(settings: Settings, orders: RouteOrders, routes: Sequence[str] | None, state: RouteState) -> list[str]:
    """Return the routes to order. A route that has left the settings can be resumed, so that no order is stuck.

    Raises ``SettingsError`` for an unknown route, ``Refused`` for one without a store.
    """
    ordered = orders.keys() if state is RouteState.RUNNING else set[str]()
    if not routes:
        stored = [name for name in settings.routes if not no_store(settings, name)]
        if not stored and not ordered:
            raise Refused(no_store(settings))
        return [*stored, *sorted(ordered - set(stored))]
    for name in routes:
        if name in ordered:
            continue
        if name not in settings.routes:
            raise SettingsError(unknown_route(settings, name))
        refuse_without_store(settings, name)
    return list(dict.fromkeys(routes))


def _ask(verb: str, names: Sequence[str]) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            f"Routes to {verb}: {len(names)}. Confirm with --yes, because there is no terminal to ask on."
        )
    say(f"  {', '.join(names)}")
    if not typer.confirm(f"{verb.capitalize()} these routes ({len(names)})?", err=True):
        say("Nothing was done.")
        raise typer.Exit(FAILED)


async def _described(desk: Desk, names: Iterable[str]) -> list[dict[str, Any]]:
    orders, counts = await desk.orders(), (await desk.stats()).by_route
    return [
        {
            "route": name,
            "state": order.state.value if (order := orders.get(name)) else RouteState.RUNNING.value,
            "since": write_moment(order.since_ms) if order else None,
            "by": order.by if order else None,
            "reason": order.reason or None if order else None,
            "parked": counts[name].parked if name in counts else 0,
            "held": counts[name].held if name in counts else 0,
        }
        for name in names
    ]


def _user() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        return "unknown"
