"""The desk over HTTP: commands use it where the API is named, and Redis cannot be reached.

A row keeps the JSON that the API answered, so that commands print the same as at a store.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from os import environ, fsdecode
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from bridge.admin.desk import Answer, Cursor, Filter, Row, ServerMemory, Stats
from bridge.admin.desk import RouteStats as Counts
from bridge.admin.past import AuditEntry, PastCursor, PastFilter, PastSlot, Remembered
from bridge.admin.payload import Opened
from bridge.core.errors import NotFound, PostdateError, Refused, SettingsError, StoreUnavailable
from bridge.core.orders import RouteOrder, RouteOrders, RouteState
from bridge.core.ports import Found
from bridge.core.state import State
from bridge.delay.duration import read_moment_ms
from bridge.parking.history import HistoryLimits, HistoryRow, PastState

_API, _TOKEN, _TOKEN_FILE = "POSTDATE_API", "POSTDATE_API_TOKEN", "POSTDATE_API_TOKEN_FILE"
_TIMEOUT_S = 30.0
_PAGE = 200
#: How often a request is repeated that came too quickly.
_TRIES = 60


class ApiAddress(NamedTuple):
    """Where the API is."""

    url: str
    token: str


#: The states of messages in the store.
_HERE = frozenset(one.value for one in State)
_KINDS: Mapping[int, type[PostdateError]] = MappingProxyType(
    {404: NotFound, 401: Refused, 403: Refused, 409: Refused, 503: StoreUnavailable}
)
#: What `--api` names.
NAMED: ContextVar[str] = ContextVar("api", default="")


def api_address() -> ApiAddress | None:
    """Return the API that --api or the environment names, which then takes the place of Redis; None for none.

    Raises ``SettingsError``.
    """
    url = NAMED.get() or environ.get(_API, "")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"The API's address {url!r} is not a URL. Write it like http://127.0.0.1:8480")
    return ApiAddress(url.rstrip("/").removesuffix("/api/v1"), _token())


def _token() -> str:
    if file := environ.get(_TOKEN_FILE):
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{_TOKEN_FILE} cannot be read: {error}") from None
    return environ.get(_TOKEN, "").strip()


@dataclass(frozen=True, slots=True)
class ToldRow(Row):
    """A row with the message as the API told it, and its payload where it was asked for."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    opened: Opened | None = None


class RemoteDesk:
    """``bridge.admin.desk.Desk`` over the API. It raises ``Refused`` for what the token does not allow."""

    def __init__(self, address: ApiAddress) -> None:
        self.limits = HistoryLimits()
        self._since_ms = 0
        headers = {"X-Postdate-Via": "cli", "Content-Type": "application/json"}
        if address.token:
            headers["Authorization"] = f"Bearer {address.token}"
        self._url = address.url
        self._client = httpx.AsyncClient(base_url=f"{address.url}/api/v1", headers=headers, timeout=_TIMEOUT_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(self, method: str, path: str, body: Any = None, **params: Any) -> httpx.Response:
        """Send one request; wait where it came too quickly. Return the answer, 404 and 409 too. Raises the error that a
        command knows for others."""
        given = {name: value for name, value in params.items() if value not in (None, "", 0)}
        content = json.dumps(body).encode() if body is not None else None
        for _ in range(_TRIES):
            try:
                answer = await self._client.request(method, path, content=content, params=given)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                text = str(error) or type(error).__name__
                raise StoreUnavailable(f"the API at {self._url} does not answer: {text}") from error
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
        if answer.is_success or answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):
            return answer
        raise _error_of(answer)

    async def now_ms(self) -> int:
        return int((await self._get("/messages", limit=1))["now_ms"])

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        params: dict[str, Any] = {
            "state": state.value,
            "route": wanted.route,
            "key": fsdecode(wanted.key) if wanted.key else None,
            "due_after": wanted.due_from_ms,
            "due_before": wanted.due_before_ms,
            "reason": wanted.reason,
            "min_size": wanted.min_size,
            "min_tries": wanted.min_tries,
            "cursor": f"{after.at_ms}-{after.id.decode()}" if after else None,
            "limit": _PAGE,
        }
        while True:
            page = await self._get("/messages", **params)
            for facts in page["messages"]:
                yield _row(facts)
            if page["next"] is None:
                return
            params["cursor"] = page["next"]

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        rows: list[Row] = []
        for one in dict.fromkeys(ids):
            answer = await self.ask("GET", f"/messages/{one.decode()}")
            if answer.is_success and (details := answer.json())["message"]["state"] in _HERE:
                rows.append(_row(details["message"], await self._open(one, details, payload_bytes < 0)))
        return rows

    async def _open(self, one: bytes, details: Mapping[str, Any], whole: bool) -> Opened:
        body = details["body"]
        raw = b64decode(body["base64"]) if body["base64"] else (body["text"] or "").encode()
        if whole:
            answer = await self.ask("GET", f"/messages/{one.decode()}/body")
            if not answer.is_success:
                raise _error_of(answer)
            raw = answer.content
        told = {"properties": {**details["properties"], "headers": details["headers"]}}
        told = details.get("opened") or told | {"other": told["properties"]}
        hidden = {"body hidden": body["hidden"]} if body["hidden"] else {}
        return Opened(told["properties"], details["origin"], told["other"] | hidden, raw, int(body["size"]))

    async def find(self, route: str, key: bytes) -> Found:
        ids: list[bytes] = []
        for state in (State.PARKED, State.CLAIMED, State.DEAD):
            page = await self._get("/messages", state=state.value, route=route, key=fsdecode(key), limit=_PAGE)
            ids += [one["id"].encode() for one in page["messages"]]
            if page["next"] is not None:
                return Found([], len(ids))
        return Found(ids, 0)

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        return {
            one: _answer(await self.ask("DELETE", f"/messages/{one.decode()}", reason=reason), Answer.PARKED)
            for one in ids
        }

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        found = {}
        for one in ids:
            path = f"/messages/{one.decode()}"
            call = self.ask("PATCH", path, {"at": str(due_ms)}) if due_ms else self.ask("POST", f"{path}/deliver")
            found[one] = _answer(await call, Answer.PARKED)
        return found

    async def retry(self, ids: Sequence[bytes]) -> int:
        answers = [await self.ask("POST", f"/messages/{one.decode()}/retry") for one in ids]
        return sum(one.is_success for one in answers)

    async def send(self, new: Mapping[str, Any]) -> tuple[str, int]:
        """Schedule a message: the members of `POST /messages`. Return its id and when it is due (Unix ms)."""
        answer = await self.ask("POST", "/messages", {name: value for name, value in new.items() if value is not None})
        if not answer.is_success:
            raise _error_of(answer)
        told = answer.json()
        return told["id"], told["due_ms"]

    async def stats(self) -> Stats:
        told = await self._get("/stats")
        routes = {
            one["name"]: Counts(
                one["parked"], one["held"], one["dead"], one["overdue"], one["oldest_overdue_ms"], one["next_due_ms"]
            )
            for one in told["routes"]
        }
        return Stats(
            now_ms=read_moment_ms(told["now"]),
            parked=told["parked"],
            claimed=told["claimed"],
            dead=told["dead"],
            overdue=told["overdue"],
            next_due_ms=None if told["next_due"] is None else read_moment_ms(told["next_due"]),
            ever=told["ever"],
            instances={one.pop("name"): one for one in told["instances"]},
            memory=[ServerMemory(one["server"], one["used"], one["max"] or 0) for one in told["memory"]],
            bytes_each=told["bytes_per_message"],
            refused=told["refused_waiting"],
            held=told["held"],
            warnings=told["warnings"],
            by_route=routes,
        )

    async def orders(self) -> RouteOrders:
        found = {}
        for one in (await self._get("/routes"))["routes"]:
            if one["state"] in (RouteState.PAUSED, RouteState.DRAINING):
                order = RouteOrder(RouteState(one["state"]), one["since_ms"], one["by"], one["reason"] or "")
                found[one["name"]] = order
        return found

    async def stored_routes(self) -> list[str]:
        """Return the routes that have a store."""
        return [one["name"] for one in (await self._get("/routes"))["routes"] if one["mode"] == "redis"]

    async def order(self, route: str, state: RouteState, by: str, reason: str) -> None:
        verb = {RouteState.RUNNING: "resume", RouteState.PAUSED: "pause", RouteState.DRAINING: "drain"}[state]
        answer = await self.ask("PUT", f"/routes/{quote(route, safe='')}/{verb}", {"reason": reason})
        if not answer.is_success:
            raise _error_of(answer)

    async def note(self, entry: AuditEntry) -> None:
        """Do nothing: the API writes the audit log."""

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        raise _no_command()

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        raise _no_command()

    async def put_operation(self, one: str, document: str) -> None:
        raise _no_command()

    async def operations(self) -> dict[str, str]:
        raise _no_command()

    async def open(self) -> None:
        """Ask how far the history reaches."""
        told = (await self._get("/messages", state="history", limit=1))["history"]
        self.limits = HistoryLimits(told["keep_ms"], told["max"])
        self._since_ms = int(told["since_ms"])

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        if wanted.id is not None:
            answer = await self.ask("GET", f"/messages/{wanted.id.decode()}")
            if answer.is_success and "ended_ms" in (facts := answer.json()["message"]):
                yield _past(facts)
            return
        params: dict[str, Any] = {"state": "history", "route": wanted.route, "reason": wanted.reason, "limit": _PAGE}
        params |= {"key": fsdecode(wanted.key) if wanted.key else None}
        params |= {"due_after": wanted.from_ms, "due_before": wanted.before_ms}
        while True:
            page = await self._get("/messages", **params)
            for facts in page["messages"]:
                yield _past(facts)
            if page["next"] is None:
                return
            params["cursor"] = page["next"]

    async def history_since_ms(self) -> int:
        return self._since_ms

    async def past(self, from_ms: int, to_ms: int, step_ms: int) -> list[PastSlot]:
        raise _no_command()

    async def audit(self, limit: int, before: str = "") -> list[AuditEntry]:
        raise _no_command()

    async def remember(self, key: bytes, digest: bytes, one: bytes, ttl_ms: int) -> Remembered | None:
        raise _no_command()

    async def _get(self, path: str, **params: Any) -> Any:
        answer = await self.ask("GET", path, **params)
        if not answer.is_success:
            raise _error_of(answer)
        return answer.json()


def _no_command() -> PostdateError:
    return Refused("The API does not offer this. Run the command where Redis can be reached")


def _answer(answer: httpx.Response, done: Answer) -> Answer:
    """Return the state in which a verb found a message."""
    if answer.is_success:
        return done
    state = answer.json().get("state", "none")
    return Answer(state) if state in _HERE else Answer.NONE


def _error_of(answer: httpx.Response) -> PostdateError:
    """Return the error that a command reports for a problem."""
    try:
        text = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        text = f"The API answered {answer.status_code}. Check the address"
    if answer.status_code == 401:
        text = f"A valid token is required. Set {_TOKEN} or {_TOKEN_FILE} to a token of its [auth]"
    other: type[PostdateError] = SettingsError if answer.is_client_error else StoreUnavailable
    return _KINDS.get(answer.status_code, other)(text)


def _past(facts: Mapping[str, Any]) -> HistoryRow:
    """Return an entry of the history as the API told it."""
    life = {one["what"]: int(one["at_ms"]) for one in facts["life"]}
    return HistoryRow(
        facts["id"].encode(),
        facts["route"],
        (facts["key"] or "").encode(),
        PastState(facts["state"]),
        facts["arrived_ms"],
        facts["due_ms"],
        life.get("claimed"),
        life.get("published"),
        facts["ended_ms"],
        facts["tries"],
        facts["size"],
        facts["reason"] or "",
        facts["broker"] or "",
    )


def _row(facts: Mapping[str, Any], opened: Opened | None = None) -> ToldRow:
    """Return a message as the API told it."""
    at = facts.get("next_try") or facts.get("lease_until") or facts.get("died")
    state = State(facts["state"])
    at_ms = read_moment_ms(at) if at else facts["due_ms"] if state is State.PARKED else 0
    return ToldRow(
        facts["id"].encode(),
        state,
        at_ms,
        facts["due_ms"],
        facts["arrived_ms"],
        facts["tries"],
        facts["route"],
        (facts["key"] or "").encode(),
        (facts.get("first_copy") or "").encode(),
        facts["size"],
        b"",
        facts["reason"] or "",
        facts["broker"] or "",
        facts.get("held", False),
        facts=facts,
        opened=opened,
    )
