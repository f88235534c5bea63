"""The API over the memory store, without a server: for tests of its endpoints."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
from pydantic import SecretStr

from adapters.memory import MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.app.brokers import broker_of
from bridge.core.errors import Refused, StoreUnavailable
from bridge.desk.payload import Draft
from bridge.desk.protocol import Desk
from bridge.http.access import Role
from bridge.http.app import create_app
from bridge.http.backend import Backend
from bridge.http.line import Processes
from bridge.http.status import stream
from bridge.operate.journals import NO_JOURNAL
from bridge.operate.send import Message, new_id, send
from bridge.operate.stores import Reserve
from bridge.parking.identity import Ids
from bridge.pipeline.move_tail import MoveTail
from bridge.pipeline.restore import Restorer
from bridge.settings import Settings
from bridge.settings.model import Auth, BrokerKind, Route

VIEWER, OPERATOR, ADMIN = "viewer-token-0123456789", "operator-token-0123456789", "admin-token-0123456789"
TOKENS = {Role.VIEWER: VIEWER, Role.OPERATOR: OPERATOR, Role.ADMIN: ADMIN}
AUTH = Auth(viewer_token=SecretStr(VIEWER), operator_token=SecretStr(OPERATOR), admin_token=SecretStr(ADMIN))
ROUTES = {
    "orders": Route(intercept="orders.delay", deliver_to="orders"),
    "bills": Route(intercept="bills.delay", deliver_to="bills"),
}
HOUR_MS = 3_600_000


class MemoryStores:
    """One memory store behind an app. ``journal``: its journal, if it has one, which ``write`` writes."""

    journal: MemoryJournal | None = None

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.memory = self.store.memory
        #: What a test makes its ``journal``.
        self.spare = MemoryJournal()
        self.kept: Desk = MemoryDesk(self.store)
        self.ids = Ids("tester")
        self.closed = False

    async def desk(self) -> Desk:
        if self.memory.away:
            raise StoreUnavailable(self.memory.away)
        return self.kept

    async def park(
        self, broker: BrokerKind, make: Callable[[int], Message], reserve: Reserve | None = None
    ) -> tuple[bytes, Message]:
        message, store = make(self.memory.now_ms()), self.store_of(broker)
        message_id = new_id(store, self.ids, message)
        return await send(store, self.ids, message, await reserve(message_id) if reserve else message_id), message

    def store_of(self, broker: BrokerKind) -> MemoryStore:
        """Return the store of a broker's messages: one for both."""
        return self.store

    async def store_one(self, route: str, due_in_ms: int = HOUR_MS, payload: bytes = b"") -> bytes:
        """Park a message in the quickest way."""
        payload = (
            payload
            or broker_of("rabbitmq").payloads.pack(settings(), route, Draft(b"{}", {}, routing_key="new")).payload
        )
        due_ms = self.memory.now_ms() + due_in_ms
        return await send(self.store, self.ids, Message(route, "none", "replace", b"", payload, due_ms, b""))

    @asynccontextmanager
    async def restorers(self, route: str | None) -> AsyncIterator[list[Restorer]]:
        if self.journal is None:
            raise Refused(NO_JOURNAL)
        await self.journal.open()
        yield [Restorer(self.store, self.kept, self.journal, self.store)]

    async def write(self) -> list[str]:
        """Write what waits, and what left, to the journal. Return the ids that wait."""
        assert self.journal is not None
        ids = [message_id for shard in self.memory.shards for message_id in shard.messages]
        await self.journal.write(await self.store.envelopes(ids))
        await MoveTail(self.journal, self.store).catch_up(range(self.store.shards))
        return [message_id.decode() for message_id in ids]

    async def close(self) -> None:
        self.closed = True


class Api:
    """A client of an app with one role, and the store behind it."""

    def __init__(self, client: httpx.AsyncClient, stores: MemoryStores, backend: Backend) -> None:
        self.client = client
        self.backend = backend
        self.stores = stores

    async def get(self, path: str, status: int = 200, /, **params: Any) -> Any:
        return _judged(await self.client.get(f"/api/v1{path}", params=params), status)

    async def call(self, method: str, path: str, status: int = 200, body: Any = None, **headers: str) -> Any:
        sent = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        content = json.dumps(body).encode() if body is not None else None
        return _judged(await self.client.request(method, f"/api/v1{path}", content=content, headers=sent), status)

    async def events(self) -> AsyncGenerator[str]:
        """The names of the events, as a page would get them."""
        async with aclosing(stream(self.backend, Role.VIEWER)) as told:
            async for text in told:
                yield text.partition("\n")[0].removeprefix("event: ")

    async def schedule(self, body: str = '{"n": 1}', after: str = "1h", **more: Any) -> str:
        """Park a message over the API; return its id."""
        new = {"route": "orders", "routing_key": "new", "body": body, "in": after, **more}
        found: str = (await self.call("POST", "/messages", 201, new))["id"]
        return found

    async def bury(self, reason: str = "unroutable: no queue", **more: Any) -> str:
        """Make a dead letter; return its id."""
        message_id = (await self.schedule(after="0s", **more)).encode()
        self.stores.memory.clock.advance(10)  # type: ignore[attr-defined]
        (claimed,) = (await self.stores.store.claim([int(_shard(message_id))], 10, 10**6, 60_000, 0)).values()
        assert not isinstance(claimed, StoreUnavailable)
        await self.stores.store.bury([(claim, reason) for claim in claimed.claims])
        return message_id.decode()

    async def claim(self, message_id: str) -> None:
        """Claim a due message."""
        await self.stores.store.claim([int(_shard(message_id.encode()))], 10, 10**6, 60_000, 0)


def _shard(message_id: bytes) -> int:
    return int(message_id[18:].decode(), 32)


def _judged(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    if status >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert problem["status"] == status
        assert problem["detail"].endswith((".", "?", "!"))
    return response.json() if "json" in response.headers.get("content-type", "") else response.content


def settings(auth: Auth = AUTH, **more: Any) -> Settings:
    return Settings(routes=ROUTES, auth=auth, **more)


@asynccontextmanager
async def api(
    role: Role | None = Role.ADMIN,
    given: Settings | None = None,
    stores: MemoryStores | None = None,
    processes: Processes | None = None,
) -> AsyncIterator[Api]:
    """An app with three tokens, and a client with the token of ``role``; None: without one."""
    stores = stores or MemoryStores()
    app = create_app(given or settings(), stores, processes or Processes())
    headers = {"Authorization": f"Bearer {TOKENS[role]}"} if role else {}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8480", headers=headers) as client:
        yield Api(client, stores, app.state.backend)
