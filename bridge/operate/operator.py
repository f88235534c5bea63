"""What operators do, whether at the stores (``local``) or over the API (``remote``). Every method returns documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from bridge.core.orders import RouteState
from bridge.core.state import State
from bridge.desk.past import PastFilter
from bridge.desk.payload import Draft
from bridge.operate import documents as doc
from bridge.operate.bulk import Selection
from bridge.operate.find import Criteria
from bridge.operate.verbs import Verb
from bridge.pipeline.restore import RestoreOrder

#: Milliseconds, and whether they count from now, as ``moments.read_due`` returns them.
Due = tuple[int, bool]
#: Is called with a number that grows.
Progress = Callable[[int], None]


def silent(number: int) -> None:
    """Report nothing."""


class Operator(Protocol):
    """What operators do. Ids must be well-formed (``select.read_ids``).

    Every method raises ``StoreUnavailable``, ``StoreUnfit``, and ``Refused`` where no route has a store or the caller
    may not do it."""

    async def now_ms(self) -> int:
        """Return the store's clock (Unix ms)."""

    async def page(self, state: State, wanted: Criteria, cursor: str | None, limit: int) -> doc.MessageList:
        """Return the next messages in a state that match. Raises ``SettingsError`` for a wrong cursor."""

    def messages(self, state: State, wanted: Criteria, progress: Progress = silent) -> AsyncIterator[doc.MessageFacts]:
        """Iterate over all messages in a state that match. ``progress`` is told how many were looked at."""

    async def past_page(self, wanted: PastFilter, cursor: str | None, limit: int) -> doc.PastList:
        """Return the next entries of the history that match, newest first. Raises as ``page``."""

    def history(self, wanted: PastFilter, progress: Progress = silent) -> AsyncIterator[doc.PastMessage]:
        """Iterate over all entries of the history that match, newest first. ``progress`` as in ``messages``, over the
        API."""

    async def ids_of_key(self, key: bytes, route: str | None) -> list[str]:
        """Return the ids of the messages with a key. The route may be None where only one is configured.

        Raises ``SettingsError`` where the route is missing, or is not configured and has none, ``NotFound``, and
        ``Refused`` for a key that too many messages have.
        """

    async def search(self, text: str, route: str | None) -> doc.SearchResult:
        """Find messages by id or key, in the store and in the history."""

    async def show(self, message_id: str, whole: bool = False) -> doc.MessageDetails:
        """Return all that is known of a message, ``whole``: with all of its body. Raises ``NotFound``."""

    async def body(self, message_id: str) -> bytes:
        """Return a body byte for byte. Raises ``NotFound``, also where only the history has the message."""

    async def act(
        self, verb: Verb, ids: Sequence[str], due: Due | None = None, reason: str = "", *, what: str = ""
    ) -> list[doc.VerbResult]:
        """Act on messages. The audit log calls them ``what``.

        Raises ``SettingsError`` for a due moment that is too far away.
        """

    async def preview(
        self, verb: Verb, chosen: Selection, due: Due | None = None, cursor: str | None = None
    ) -> doc.DryRun:
        """Return on how many messages ``bulk`` would act, with a sample. A count that was cut has a cursor to go on.

        Raises as ``act`` and ``page``."""

    async def bulk(
        self, verb: Verb, chosen: Selection, due: Due | None = None, rate: int | None = None, reason: str = ""
    ) -> doc.OperationFacts:
        """Begin to act on many messages, ``rate`` a second. Raises as ``act``."""

    async def preview_restore(
        self, order: RestoreOrder, limit_s: float | None = None, progress: Progress = silent
    ) -> doc.RestorePreview:
        """Return what ``restore`` would bring back. A count may be cut after ``limit_s``; the API cuts it always.

        Raises ``SettingsError`` for an unknown route, ``Refused`` without a journal."""

    async def restore(self, order: RestoreOrder, reason: str = "", most: int | None = None) -> doc.OperationFacts:
        """Begin to restore from the journal. ``most``: how many cancelled or replaced messages may match.

        Raises as ``preview_restore``."""

    async def operations(self) -> list[doc.OperationFacts]:
        """Return the latest bulk operations, the newest first."""

    async def operation(self, name: str) -> doc.OperationFacts:
        """Return a bulk operation. Raises ``NotFound``."""

    async def stop(self, operation: str) -> doc.OperationFacts:
        """Ask the process that runs a bulk operation to stop it. Raises ``NotFound``, and ``Refused`` for one that has
        ended."""

    async def send(
        self, route: str, draft: Draft, key: str, due: Due, once: str | None = None
    ) -> tuple[doc.Scheduled, bool]:
        """Park a message; return whether it is a new one. A request with the same ``once`` parks no second message.

        Raises ``SettingsError`` for mistakes in the message, and ``Refused`` for a key that is taken.
        """

    async def routes(self) -> list[doc.RouteFacts]:
        """Return the configured routes."""

    async def routes_for(self, state: RouteState, names: Sequence[str] | None) -> list[str]:
        """Return the routes that an order to be in ``state`` is for: these, or all. Raises ``SettingsError`` for an
        unknown route, ``Refused`` for one without a store."""

    async def order(self, names: Sequence[str], state: RouteState, reason: str = "") -> list[doc.RouteCounts]:
        """Pause routes, drain them, or let them run. All instances follow within about a second.

        Raises ``NotFound`` or ``SettingsError`` for an unknown route, ``Refused`` for one without a store.
        """

    async def stats(self) -> doc.StatsFacts:
        """Return the numbers of the store and its instances, and the verdict."""

    async def audit(self, limit: int, before: str = "") -> doc.AuditList:
        """Return what people did, newest first, from the entry that follows the one with the id ``before``."""

    async def close(self) -> None:
        """Close all connections."""
