"""Who may do what: tokens, roles, hosts, sizes and rates. A request passes here before any of its body is read.

Three roles, each of which includes the one before: a viewer reads, an operator acts on messages, an admin also on
routes and settings. There are no cookies and no CORS, so no other web site can act with a person's rights. Without
tokens only this machine is served, and everyone on it is admin; then checks of Host and Origin keep other sites out.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import structlog
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.http.problems import Problem
from bridge.settings import Settings

log = structlog.get_logger("postdate")

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", CSP.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
#: Probes are never refused for their rate: a busy page must not restart the bridge.
_HEALTH = ("/livez", "/readyz", "/startupz")
_SAFE = ("GET", "HEAD", "OPTIONS")
_TOKENS_IN_URL = frozenset({"token", "access_token", "api_key", "apikey", "authorization"})
#: Addresses whose rate is remembered; the least recent is forgotten first.
_ADDRESSES = 4096
#: All headers of a request together.
HEAD_MAX = 64 * 1024
#: How long a client may take to send a body.
BODY_S = 30.0


class Role(IntEnum):
    """What a caller may do. A higher one includes the lower ones."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def title(self) -> str:
        """Its name in settings and answers."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: the role of the token, and for the audit log a name and the way in."""

    role: Role
    who: str
    via: str


def caller_of(request: Request) -> Caller:
    """Return who sent a request. Raises ``Problem`` (401) where there is no valid token."""
    found = request.scope.get("postdate.caller")
    if not isinstance(found, Caller):
        raise _unauthorized()
    return found


def role_of(request: Request) -> Role | None:
    """Return the role of a request to a path that needs no token; None without one."""
    found = request.scope.get("postdate.caller")
    return found.role if isinstance(found, Caller) else None


class GuardedRoute(APIRoute):
    """A route with a role. It is checked before the body is read."""

    role = Role.ADMIN

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler with the check in front."""
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            caller = caller_of(request)
            if caller.role < self.role:
                text = f"This needs the role {self.role.title}. Your token has the role {caller.role.title}."
                raise Problem(403, text, role=caller.role.title, needs=self.role.title)
            return await handler(request)

        return guarded


class ViewerRoute(GuardedRoute):
    """A route that reads."""

    role = Role.VIEWER


class OperatorRoute(GuardedRoute):
    """A route that changes messages."""

    role = Role.OPERATOR


_ROUTES: Mapping[Role, type[GuardedRoute]] = {
    Role.VIEWER: ViewerRoute,
    Role.OPERATOR: OperatorRoute,
    Role.ADMIN: GuardedRoute,
}


def router(role: Role, tag: str, prefix: str = "/api/v1") -> APIRouter:
    """Return a router whose routes all need this role."""
    return APIRouter(prefix=prefix, route_class=_ROUTES[role], tags=[tag], redirect_slashes=False)


class Tokens:
    """The configured tokens. All of them are compared, in constant time, whatever the first comparison says."""

    def __init__(self, settings: Settings) -> None:
        auth = settings.auth
        texts = {Role.VIEWER: auth.viewer_token, Role.OPERATOR: auth.operator_token, Role.ADMIN: auth.admin_token}
        self._digests = {role: _digest(text.get_secret_value().encode()) for role, text in texts.items() if _set(text)}

    @property
    def open(self) -> bool:
        """Whether there are no tokens."""
        return not self._digests

    def role(self, given: bytes) -> Role | None:
        """Return the role of a token, None for a wrong one."""
        digest = _digest(given)
        found = [role for role, known in self._digests.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None


def _set(secret: Any) -> bool:
    return bool(secret.get_secret_value())


def _digest(text: bytes) -> bytes:
    return sha256(text).digest()


class Rates:
    """A bucket of requests for each address: it holds one second's worth and refills steadily."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Take one request from the address's bucket. Return 0, or the seconds until there is one."""
        now = self._clock()
        address = network(address)
        left, then = self._buckets.pop(address, (self._rate, now))
        left = min(self._rate, left + (now - then) * self._rate)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate

    def __len__(self) -> int:
        return len(self._buckets)


def network(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or an IPv6 network of 64 bits. Pure."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip), 64), strict=False).network_address)


def is_local(host: str) -> bool:
    """Return whether a Host header names this machine. Pure."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_site(origin: str, host: str) -> bool:
    """Return whether an Origin header names the server that the Host header names. Pure."""
    return "://" in origin and origin.partition("://")[2].lower() == host.lower()


def path_trick(raw: bytes, path: str) -> str:
    """Return why a path is refused, "" for a plain one. Pure.

    Business keys may contain anything, so the end of a path under /keys/ is not judged.
    """
    if any(byte <= 32 or byte >= 127 for byte in raw):
        return "contains characters that must be percent-encoded"
    judged = path.partition("/keys/")[0]
    if any(ord(letter) < 32 or letter in "\\\x7f" for letter in judged):
        return "contains control characters or backslashes"
    if "//" in judged or any(part in (".", "..") for part in judged.split("/")):
        return "contains empty parts or dots"
    return ""


class Gate:
    """The middleware around the app: judges each request, and adds the security headers to each answer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._tokens = Tokens(settings)
        self._rates = Rates(settings.http.requests_per_second)
        self._request_max = settings.http.request_max
        self._base_path = settings.http.base_path
        self._open_metrics = settings.auth.open_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed, and answer all else with a problem."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        answer = _SecuredAnswer(send)
        body = _Body(receive, self._request_max)
        answer.instead = lambda: body.problem
        try:
            self._judge(scope)
            await self._app(scope, body.receive, answer.send)
        except Problem as problem:
            await answer.refuse(problem, scope, receive)
        except Exception:
            log.exception("a request failed", method=scope["method"], path=scope["path"])
            text = "postdate failed to answer. Its log says why. Look there, then try again."
            await answer.refuse(Problem(500, text), scope, receive)

    def _judge(self, scope: Scope) -> None:
        headers = _headers(scope)
        path = self._place(scope, headers)
        if path not in _HEALTH and (wait_s := self._rates.wait_s(_address(scope))):
            text = "Too many requests from this address. http.requests_per_second sets how many are allowed."
            raise Problem(429, text, {"Retry-After": str(max(1, round(wait_s)))})
        if trick := path_trick(scope.get("raw_path") or path.encode(), path):
            raise Problem(400, f"The path {trick}. Send a plain path, as /openapi.json lists them.")
        if any(name.lower() in _TOKENS_IN_URL for name, _ in parse_qsl(scope["query_string"].decode("latin-1"))):
            text = "A token in the address would end up in logs. Send the header Authorization: Bearer TOKEN."
            raise Problem(400, text)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_MAX:
            raise Problem(431, f"The headers are too large: more than {HEAD_MAX} bytes.", {"Connection": "close"})
        if "content-length" in headers and "transfer-encoding" in headers:
            text = "Content-Length and Transfer-Encoding contradict each other. Send one of them."
            raise Problem(400, text, {"Connection": "close"})
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > self._request_max:
            raise _too_large(self._request_max)
        caller = self._caller(scope, headers)
        if caller is not None:
            scope["postdate.caller"] = caller
        elif path.startswith(("/api/", "/-/")) or (path == "/metrics" and not self._open_metrics):
            raise _unauthorized()

    def _place(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the path below the prefix under which postdate is served. A proxy may have kept or cut the prefix."""
        path: str = scope["path"]
        prefix = self._base_path
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :] or "/"
        forwarded = headers.get("x-forwarded-prefix", "").rstrip("/")
        if forwarded and _is_prefix(forwarded):
            prefix = forwarded
        scope["root_path"] = prefix
        scope["path"] = f"{prefix}{path}"
        return path

    def _caller(self, scope: Scope, headers: Mapping[str, str]) -> Caller | None:
        via = (
            "ui"
            if headers.get("x-postdate-via") == "ui"
            else "cli"
            if headers.get("x-postdate-via") == "cli"
            else "api"
        )
        if self._tokens.open:
            _judge_local(scope["method"], headers)
            return Caller(Role.ADMIN, "local", via)
        kind, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            return None
        role = self._tokens.role(token.strip().encode("latin-1", "replace")) if kind.lower() == "bearer" else None
        if role is None:
            raise _unauthorized()
        return Caller(role, role.title, via)


def _judge_local(method: str, headers: Mapping[str, str]) -> None:
    """Refuse what another web site lets a browser on this machine send."""
    host = headers.get("host", "")
    if not is_local(host):
        text = "Without tokens postdate serves only this machine, as localhost. Set auth.admin_token to serve others."
        raise Problem(421, text)
    if method in _SAFE:
        return
    origin = headers.get("origin")
    if (origin is not None and not same_site(origin, host)) or headers.get("sec-fetch-site") in (
        "cross-site",
        "same-site",
    ):
        raise Problem(403, "Another web site sent this request. Open postdate's own page, or set auth.admin_token.")
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and content_type != "application/json" and "x-postdate-via" not in headers:
        raise Problem(415, "Send the header Content-Type: application/json. It proves that no other web site asks.")


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name. Raises ``Problem`` where one that decides is there twice."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        if key in found and key in ("authorization", "host", "content-length", "content-type", "origin"):
            raise Problem(400, f"The header {key} is there twice. Send it once.")
        found[key] = value.decode("latin-1")
    return found


def _is_prefix(text: str) -> bool:
    return len(text) <= 200 and text.startswith("/") and not path_trick(text.encode("utf-8"), text)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _unauthorized() -> Problem:
    text = "A valid token is required. Send the header Authorization: Bearer TOKEN, with a token of [auth]."
    return Problem(401, text, {"WWW-Authenticate": 'Bearer realm="postdate"'})


def _too_large(most: int) -> Problem:
    text = f"The request is too large. http.request_max allows {most} bytes."
    return Problem(413, text, {"Connection": "close"})


class _Body:
    """Reads a request's body within its limits of size and time. ``problem`` says which limit was exceeded."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._left = most
        self._ended = False
        self._until = 0.0
        self.problem: Problem | None = None

    async def receive(self) -> Message:
        """Return the next message of the server."""
        if self._ended:  # what comes now is the end of the connection
            return await self._receive()
        loop = asyncio.get_running_loop()
        self._until = self._until or loop.time() + BODY_S
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self.problem = Problem(408, f"The body did not arrive within {BODY_S:.0f} s.", {"Connection": "close"})
            raise self.problem from None
        self._left -= len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._left < 0:
            self.problem = _too_large(self._most)
            raise self.problem
        return message


class _SecuredAnswer:
    """Sends an answer with the security headers. ``instead`` returns a problem that replaces one not begun yet."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._replaced = False
        self.instead: Callable[[], Problem | None] = lambda: None

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            if (problem := self.instead()) is not None:  # FastAPI answers 400 to whatever ends the reading of a body
                self._replaced = True
                await self._problem(problem)
                return
            message = {**message, "headers": _secured(message.get("headers", []))}
            self._begun = True
        await self._send(message)

    async def refuse(self, problem: Problem, scope: Scope, receive: Receive) -> None:
        """Answer with a problem, unless an answer has begun."""
        if not self._begun and not self._replaced:
            await self._problem(problem)

    async def _problem(self, problem: Problem) -> None:
        self._begun = True
        response = problem.response()
        start = {"type": "http.response.start", "status": response.status_code}
        await self._send({**start, "headers": _secured(response.raw_headers)})
        await self._send({"type": "http.response.body", "body": bytes(response.body)})


def _secured(headers: Any) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    return [*given, *(one for one in _HEADERS if one[0] not in names)]
