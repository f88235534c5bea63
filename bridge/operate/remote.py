"""``Operator`` over the API: commands use it where the API is named, and Redis cannot be reached."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from os import environ, fsdecode
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import httpx

from bridge.core.errors import NOT_FOUND, REFUSED, NotFound, PostdateError, Refused, SettingsError, StoreUnavailable
from bridge.core.orders import RouteState
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.desk.past import PastFilter
from bridge.desk.payload import Draft
from bridge.desk.rows import Filter
from bridge.desk.severity import CheckResult, Severity
from bridge.operate import documents as doc
from bridge.operate.bulk import Selection
from bridge.operate.describe import body_of
from bridge.operate.find import Criteria
from bridge.operate.operator import Due, Progress, silent
from bridge.operate.restoring import given
from bridge.operate.select import unknown_route
from bridge.operate.send import judge
from bridge.operate.verbs import RESTORE, Verb, ordering
from bridge.pipeline.restore import RestoreOrder

Page = TypeVar("Page", doc.MessageList, doc.PastList)

_API, _TOKEN, _TOKEN_FILE = "POSTDATE_API", "POSTDATE_API_TOKEN", "POSTDATE_API_TOKEN_FILE"
_TIMEOUT_S = 30.0
_PAGE = 200
#: How often a request is repeated that came too quickly.
_TRIES = 60


class ApiAddress(NamedTuple):
    """Where the API is."""

    url: str
    token: str


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


def client_of(address: ApiAddress, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    headers = {"X-Postdate-Via": "cli", "Content-Type": "application/json"}
    if address.token:
        headers["Authorization"] = f"Bearer {address.token}"
    url = f"{address.url}/api/v1"
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, transport=transport)


class HttpOperator:
    """``Operator`` over the API. It raises ``Refused`` for what the token does not allow."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **params: Any
    ) -> httpx.Response:
        """Send one request; wait where it came too quickly. Return the answer, 404 and 409 too. Raises the error that a
        command knows for others."""
        given = {name: value for name, value in params.items() if value not in (None, "", 0)}
        content = json.dumps(body).encode() if body is not None else None
        for _ in range(_TRIES):
            try:
                answer = await self._client.request(method, path, content=content, params=given, headers=headers)
            except UnicodeEncodeError as error:
                text = (
                    f"{error.object!r} is not UTF-8 text, and the API takes nothing else. Run the command without --api"
                )
                raise SettingsError(text) from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                text = str(error) or type(error).__name__
                url = str(self._client.base_url).removesuffix("/api/v1/")
                raise StoreUnavailable(f"the API at {url} does not answer: {text}") from error
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(float(answer.headers.get("Retry-After", "1")))
        if answer.is_success or answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT):
            return answer
        raise _error_of(answer)

    async def _done(self, method: str, path: str, body: Any = None, **params: Any) -> httpx.Response:
        """Send one request. Raises the error of an answer that is none of success."""
        answer = await self.ask(method, path, body, **params)
        if not answer.is_success:
            raise _error_of(answer)
        return answer

    async def _get(self, path: str, **params: Any) -> bytes:
        return (await self._done("GET", path, **params)).content

    async def now_ms(self) -> int:
        return (await self.page(State.PARKED, Criteria(), None, 1)).now_ms

    # -- reading ------------------------------------------------------------------------------------------------------

    async def page(self, state: State, wanted: Criteria, cursor: str | None, limit: int) -> doc.MessageList:
        params = {**wanted.given(), "cursor": cursor, "limit": limit}
        return doc.MessageList.model_validate_json(await self._get("/messages", state=state.value, **params))

    async def messages(
        self, state: State, wanted: Criteria, progress: Progress = silent
    ) -> AsyncIterator[doc.MessageFacts]:
        """Ask for page after page. The API judges all criteria."""
        async for page in _pages(partial(self.page, state, wanted), progress):
            for message in page.messages:
                yield message

    async def past_page(self, wanted: PastFilter, cursor: str | None, limit: int) -> doc.PastList:
        params = {
            "route": wanted.route,
            "key": fsdecode(wanted.key) if wanted.key else None,
            "due_after": wanted.from_ms,
            "due_before": wanted.before_ms,
            "reason": wanted.reason,
            "cursor": cursor,
            "limit": limit,
        }
        return doc.PastList.model_validate_json(await self._get("/messages", state="history", **params))

    async def history(self, wanted: PastFilter, progress: Progress = silent) -> AsyncIterator[doc.PastMessage]:
        """Ask for page after page. How a message ended is judged here: the API has no criterion for it."""
        async for page in _pages(partial(self.past_page, wanted), progress):
            for entry in page.messages:
                if wanted.state is None or entry.state == wanted.state.value:
                    yield entry

    async def ids_of_key(self, key: bytes, route: str | None) -> list[str]:
        """Ask for the messages with a key in each state."""
        wanted, text = Criteria(Filter(route=route, key=key)), key.decode("utf-8", "backslashreplace")
        ids: list[str] = []
        for state in (State.PARKED, State.CLAIMED, State.DEAD):
            page = await self.page(state, wanted, None, _PAGE)
            ids += [message.id for message in page.messages]
            if page.next is not None:
                raise Refused(
                    f"Key {text!r} is not unique on route {route!r}. Messages: {len(ids)} or more. "
                    "Find yours with `postdate list --key KEY`, and use its id."
                )
        if ids:
            return ids
        found = await self.search(fsdecode(key), route)
        fact = f"No message has key {text!r} on route {route!r}"
        if not found.found:
            await self._judge_routes([route] if route else [])
            raise NotFound(f"{fact}: {found.text}.")
        last = (await self.show(found.found[0].id)).body.hidden.partition(": ")[2]
        raise NotFound(f"{fact}: {last} (id {found.found[0].id}).")

    async def search(self, text: str, route: str | None) -> doc.SearchResult:
        return doc.SearchResult.model_validate_json(await self._get("/search", q=text, route=route))

    async def show(self, message_id: str, whole: bool = False) -> doc.MessageDetails:
        found = json.loads(await self._get(f"/messages/{message_id}"))
        details = doc.MessageDetails.model_validate(found)
        if "ended_ms" in found["message"]:
            return details.model_copy(update={"message": doc.PastMessage.model_validate(found["message"])})
        if not whole:
            return details
        raw = await self.body(message_id)
        return details.model_copy(update={"body": body_of(raw, len(raw))})

    async def body(self, message_id: str) -> bytes:
        return await self._get(f"/messages/{message_id}/body")

    # -- verbs --------------------------------------------------------------------------------------------------------

    async def act(
        self, verb: Verb, ids: Sequence[str], due: Due | None = None, reason: str = "", *, what: str = ""
    ) -> list[doc.VerbResult]:
        """Send a request for each message. The API writes an entry for each, which names its id."""
        results: list[doc.VerbResult] = []
        for message_id in ids:
            path = f"/messages/{message_id}" + (f"/{verb.name}" if verb.method == "POST" else "")
            if verb.method == "DELETE":
                answer = await self.ask(verb.method, path, reason=reason)
            else:
                answer = await self.ask(verb.method, path, {"reason": reason, **_due(due)})
            results.append(_result(message_id, answer))
        return results

    async def preview(
        self, verb: Verb, chosen: Selection, due: Due | None = None, cursor: str | None = None
    ) -> doc.DryRun:
        body = {**_bulk(verb, chosen), **_due(due), "dry_run": True, "cursor": cursor}
        answer = await self._done("POST", "/bulk", body)
        return doc.DryRun.model_validate_json(answer.content)

    async def bulk(
        self, verb: Verb, chosen: Selection, due: Due | None = None, rate: int | None = None, reason: str = ""
    ) -> doc.OperationFacts:
        body = {**_bulk(verb, chosen), **_due(due), "max_rate": rate, "reason": reason}
        return doc.OperationFacts.model_validate_json((await self._done("POST", "/bulk", body)).content)

    async def preview_restore(
        self, order: RestoreOrder, limit_s: float | None = None, progress: Progress = silent
    ) -> doc.RestorePreview:
        answer = await self._done("POST", f"/{RESTORE}", {**given(order), "dry_run": True})
        return doc.RestorePreview.model_validate_json(answer.content)

    async def restore(self, order: RestoreOrder, reason: str = "", most: int | None = None) -> doc.OperationFacts:
        """Let the process that answers begin it. The API knows how many messages the token allows."""
        answer = await self._done("POST", f"/{RESTORE}", {**given(order), "reason": reason})
        return doc.OperationFacts.model_validate_json(answer.content)

    async def operations(self) -> list[doc.OperationFacts]:
        return doc.OperationList.model_validate_json(await self._get("/operations")).operations

    async def operation(self, name: str) -> doc.OperationFacts:
        return doc.OperationFacts.model_validate_json(await self._get(f"/operations/{quote(name, safe='')}"))

    async def stop(self, operation: str) -> doc.OperationFacts:
        answer = await self._done("DELETE", f"/operations/{quote(operation, safe='')}")
        return doc.OperationFacts.model_validate_json(answer.content)

    async def send(
        self, route: str, draft: Draft, key: str, due: Due, once: str | None = None
    ) -> tuple[doc.Scheduled, bool]:
        """Let the API park a message. Headers and key are judged here: errors name the fields as ``draft`` does."""
        judge(draft, key)
        fields = draft._asdict()
        del fields["in_api"], fields["body"]
        body = {**fields, "route": route, "key": key, "body_base64": b64encode(draft.body).decode(), **_due(due)}
        given = {name: value for name, value in body.items() if value is not None}
        headers = {"Idempotency-Key": once} if once is not None else None
        answer = await self._done("POST", "/messages", given, headers=headers)
        return doc.Scheduled.model_validate_json(answer.content), answer.status_code == httpx.codes.CREATED

    # -- routes and the system ----------------------------------------------------------------------------------------

    async def routes(self) -> list[doc.RouteFacts]:
        return doc.Routes.model_validate_json(await self._get("/routes")).routes

    async def routes_for(self, state: RouteState, names: Sequence[str] | None) -> list[str]:
        """Return these, or those with a store. The settings of the API count. A route that has left them can be
        resumed."""
        if names:
            await self._judge_routes([] if state is RouteState.RUNNING else names)
            return list(dict.fromkeys(names))
        return [route.name for route in await self.routes() if route.mode == "redis"]

    async def _judge_routes(self, names: Sequence[str]) -> None:
        """Raise ``SettingsError`` for a route that the API does not know."""
        known = [route.name for route in await self.routes()] if names else []
        for name in names:
            if name not in known:
                raise SettingsError(unknown_route(known, name))

    async def order(self, names: Sequence[str], state: RouteState, reason: str = "") -> list[doc.RouteCounts]:
        found = []
        for name in names:
            path = f"/routes/{quote(name, safe='')}/{ordering(state).name}"
            try:
                answer = await self._done("PUT", path, {"reason": reason})
            except NotFound as error:
                raise SettingsError(str(error)) from None
            found.append(doc.RouteCounts.model_validate_json(answer.content))
        return found

    async def stats(self) -> doc.StatsFacts:
        return doc.StatsFacts.model_validate_json(await self._get("/stats"))

    async def doctor(self) -> list[CheckResult]:
        """Return what `postdate doctor` finds where the API is served."""
        return [
            CheckResult(
                Severity(finding["level"].upper()), finding["subject"], finding["text"], advice=finding["advice"]
            )
            for finding in json.loads(await self._get("/doctor"))["findings"]
        ]

    async def audit(self, limit: int, before: str = "") -> doc.AuditList:
        entries: list[doc.AuditFacts] = []
        while len(entries) < limit:
            answer = await self._get("/audit", limit=min(_PAGE, limit - len(entries)), before=before)
            page = doc.AuditList.model_validate_json(answer)
            entries += page.audit
            if not (before := page.next or ""):
                break
        return doc.AuditList(audit=entries, next=before or None)


async def _pages(ask: Callable[[str | None, int], Awaitable[Page]], progress: Progress) -> AsyncIterator[Page]:
    cursor, looked_at = None, 0
    while True:
        page = await ask(cursor, _PAGE)
        progress(looked_at := looked_at + page.looked_at)
        yield page
        if (cursor := page.next) is None:
            return


def _due(due: Due | None) -> dict[str, str]:
    """Return a due moment as the API takes it."""
    if due is None:
        return {}
    ms, from_now = due
    return {"in": f"{ms}ms"} if from_now else {"at": write_moment(ms)}


def _bulk(verb: Verb, chosen: Selection) -> dict[str, Any]:
    if chosen.ids is not None:
        return {"verb": verb.name, "ids": [message_id.decode() for message_id in chosen.ids]}
    return {"verb": verb.name, "filter": {"state": chosen.state.value, **chosen.wanted.given()}}


def _result(message_id: str, answer: httpx.Response) -> doc.VerbResult:
    """Return what a verb did to a message, or why nothing was done: the members of a problem."""
    if answer.is_success:
        return doc.VerbResult.model_validate_json(answer.content)
    problem = answer.json()
    text = str(problem["detail"]).removesuffix(".")
    code = NOT_FOUND if answer.status_code == httpx.codes.NOT_FOUND else REFUSED
    why = {name: problem[name] for name in ("at", "at_ms", "lease_until") if name in problem}
    state = problem.get("state", "none")
    return doc.VerbResult(
        id=message_id, state=state, due=None, due_ms=None, text=text[:1].lower() + text[1:], code=code, **why
    )


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
