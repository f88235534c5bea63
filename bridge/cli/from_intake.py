"""``postdate restore ROUTE --from-intake``: bring back what Redis lost from the records that Kafka still has."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from bridge.app.brokers import broker_of
from bridge.cli.acting import user
from bridge.cli.importing import totals
from bridge.cli.listing import Looking
from bridge.cli.output import ask
from bridge.core.errors import Refused, SettingsError
from bridge.core.ports import ParkingStore
from bridge.delay.duration import write_moment
from bridge.desk.past import AuditEntry
from bridge.operate.moments import read_border_ms
from bridge.operate.replay import Past, Replay
from bridge.operate.select import refuse_without_store, unknown_route
from bridge.operate.stores import KeptStores
from bridge.pipeline.derive import route_rules
from bridge.pipeline.ends import LogReplay
from bridge.pipeline.putback import Overdue, Pace, PutBack
from bridge.settings import Settings
from bridge.telemetry.printable import say

#: A clock of a producer may be behind by so much.
_CLOCKS_MS = 60_000


SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="With --from-intake: bring back what was due at this time or later. A duration counts back from now. "
        "Default: the moment of the loss, if a running postdate saw it.",
    ),
]

FromIntakeOption = Annotated[
    bool, typer.Option("--from-intake", help="Without a journal: read the intake topics of a Kafka route again.")
]
CompleteOption = Annotated[
    bool,
    typer.Option(
        "--complete", help="With --from-intake: end the alarm, because with this route all is back that Redis lost."
    ),
]


async def replay_intake(
    settings: Settings,
    route: str,
    since: str | None,
    ways: tuple[Overdue, Pace],
    note: str,
    dry_run: bool,
    yes: bool,
    complete: bool,
) -> dict[str, Any]:
    """Replay the intake of a route. Return what became of its records.

    Kafka still has the records of the intake topics for their retention. postdate reads them with their cancellations
    and replacements, and parks what was due after the loss. It joins no group and commits nothing, and may run beside
    instances. What Redis has taken in since the loss is left alone, so the same command may be repeated.
    """
    if route not in settings.routes:
        raise SettingsError(unknown_route(settings.routes, route))
    refuse_without_store(settings, route)
    if settings.journal.url.get_secret_value():
        raise Refused("the journal would bring these messages back again, under their own ids. Run: postdate restore")
    stores, broker = KeptStores(settings, route), settings.routes[route].broker
    log: LogReplay | None = None
    try:
        store, desk = await stores.store(broker), await stores.desk()
        if (await desk.stats()).cold:
            raise Refused("the intake does not tell what the cold tier of the journal has. Run: postdate restore")
        since_ms = await _since_ms(settings, store, await desk.now_ms(), since)
        rules = route_rules(settings, route)
        log = broker_of(broker).ends.open_replay(settings, route, partial(stores.secret, broker))
        # A retry route waits by its schedule, which no limit bounds.
        await log.open(0 if rules.schedule else since_ms - settings.limits.max_delay - _CLOCKS_MS)
        replay = Replay(log, store, rules, since_ms)
        await replay.look(Looking("Read"))
        if dry_run or not yes:
            trial = PutBack(store, desk, ways[0], ways[1], dry_run=True)
            await replay.put(trial, Looking("Counted"))
            found = _document(replay, trial, since_ms, 0)
            if dry_run:
                say("Nothing was changed, because of --dry-run.")
                return found
            fact = f"To park: {found['parked']}, dead letters: {found['dead']}, due since {found['since']}."
            ask(fact, f"{fact} Put them back?")
        putback = PutBack(store, desk, *ways)
        await replay.put(putback, Looking("Put back, of"))
        found = _document(replay, putback, since_ms, await replay.follow())
        what = f"route {route} from its intake, due since {write_moment(since_ms)}"
        if complete:
            await desk.note_restored()
        await desk.note(AuditEntry(user(), "restore", what, found["parked"] + found["dead"], note))
        return found
    finally:
        if log is not None:
            await log.close()
        await stores.close()


async def _since_ms(settings: Settings, store: ParkingStore, now_ms: int, since: str | None) -> int:
    """Return the moment from which messages come back. What was being sent at the loss was due a lease before it, at
    most. Raises ``SettingsError``, and ``Refused`` where the moment of the loss does not tell."""
    if (named_ms := read_border_ms("--since", since, now_ms, back=True)) is not None:
        return named_ms
    loss = await store.loss()
    if loss is None or not loss.from_ms:
        raise SettingsError("No running postdate saw a loss, so --since is needed: a moment shortly before the loss.")
    if loss.older:
        raise Refused(
            f"at the loss, {write_moment(loss.at_ms)}, messages were held or refused: {loss.older}. They were due "
            "earlier. Give --since: a moment before the first of them was due"
        )
    return loss.from_ms - settings.dispatch.lease


def _document(replay: Replay, putback: PutBack, since_ms: int, cancelled_late: int) -> dict[str, Any]:
    return {
        "since": write_moment(since_ms),
        "read": replay.read,
        **totals(putback.counts),
        "due_before": replay.skipped[Past.BEFORE],
        "cancelled_or_replaced": replay.skipped[Past.CANCELLED],
        "handled": replay.skipped[Past.HANDLED],
        "cancelled_meanwhile": cancelled_late,
    }
