"""Who may do what: tokens, roles, hosts, sizes and rates. A request passes here before any of its body is read.

Three roles, each of which includes the one before: a viewer reads, an operator acts on messages, an admin also on
routes and settings. There are no cookies and no CORS, so no other web site can act with a person's rights. Without
tokens only this machine is served, and everyone on it is admin; then checks of Host and Origin keep other sites out.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlsplit

import structlog
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bridge.core.orders import Actor
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
_SAFE = ("GET", "HEAD", "OPTIONS")
_TOKENS_IN_URL = frozenset({"token", "access_token", "api_key", "apikey", "authorization"})
#: Clients whose rate is remembered; the least recent is forgotten first.
_CLIENTS = 4096
#: All headers of a request together.
HEAD_MAX = 64 * 1024
#: How long a client may take to send a body.
BODY_S = 30.0
#: The largest body of most requests, and of a bulk change: 10,000 ids take a quarter of it.
BODY_MAX, BULK_MAX = 64 * 1024, 1024 * 1024
#: The bytes of all bodies whose requests are not answered yet.
BODIES_BYTES = 32 * 1024 * 1024
_PARAMETERS_MAX = 100
#: As much of an unknown parameter's name is repeated.
_NAME_MAX = 100
#: Members of one JSON object. A larger one would make as many mistakes to report.
_MEMBERS_MAX = 1000
_ABSOLUTE = re.compile(rb"https?://([^/]*)", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d*)?")
#: A JSON text, also one without its end: each byte is read once.
_JSON_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


class Role(IntEnum):
    """What a caller may do. A higher one includes the lower ones."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def title(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and the role of the token.

    All requests are the API's: that a page or a command sent one is what its sender says.
    """

    role: Role
    by: Actor


def caller_of(request: Request) -> Caller:
    """Return who sent a request. Raises ``Problem`` (401) where there is no valid token."""
    found = request.scope.get("postdate.caller")
    if not isinstance(found, Caller):
        raise _unauthorized()
    return found


def exceeds_besides_texts(raw: bytes, most: int) -> bool:
    """Return whether JSON has more than ``most`` bytes besides its texts. It stops at the first byte too many. Pure."""
    end = 0
    for text in _JSON_TEXT.finditer(raw):
        most -= text.start() - end
        end = text.end()
        if most < 0:
            return True
    return len(raw) - end > most


class _PlainRequest(Request):
    """A request whose JSON is refused where reading or judging it would take far more memory than its bytes."""

    async def json(self) -> Any:
        """Return the body's JSON. Raises HTTPException: FastAPI answers 400 to other errors."""
        raw = await self.body()
        if len(raw) > BODY_MAX and exceeds_besides_texts(raw, BODY_MAX):
            raise HTTPException(422, f"The JSON has more than {BODY_MAX} bytes besides texts. Send fewer members.")
        try:
            value = await super().json()
        except UnicodeDecodeError:
            raise HTTPException(400, "The body is not UTF-8 text. Send JSON in UTF-8.") from None
        inner = value.values() if isinstance(value, dict) else ()
        if any(isinstance(part, dict) and len(part) > _MEMBERS_MAX for part in (value, *inner)):
            raise HTTPException(422, f"An object has more than {_MEMBERS_MAX} members. Send fewer.")
        return value


class GuardedRoute(APIRoute):
    """A route with a role. It is checked before the body is read. A parameter must be known, and may be given once."""

    role = Role.ADMIN

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler, known = super().get_route_handler(), self._parameters()

        async def guarded(request: Request) -> Response:
            caller = caller_of(request)
            if caller.role < self.role:
                text = f"This needs the role {self.role.title}. Your token has the role {caller.role.title}."
                raise Problem(403, text, role=caller.role.title, needs=self.role.title)
            given = request.query_params
            if twice := [name for name in given if len(given.getlist(name)) > 1]:
                raise Problem(422, f"The parameter {twice[0]} is given more than once. Only the last would count.")
            if unknown := sorted(given.keys() - known):
                names = ", ".join(sorted(known)) or "none"
                raise Problem(422, f"There is no parameter {unknown[0][:_NAME_MAX]!r} here. Parameters: {names}.")
            return await handler(_PlainRequest(request.scope, request.receive))

        return guarded

    def _parameters(self) -> Set[str]:
        """Return the names of the parameters after the question mark."""
        found: set[str] = set()
        for param in self.dependant.query_params:
            kind = param.field_info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= kind.model_fields.keys()
            else:
                found.add(param.alias)
        return found


def router(role: Role, tag: str, prefix: str = "/api/v1") -> APIRouter:
    """Return a router whose routes all need this role."""
    guarded = type("RoleRoute", (GuardedRoute,), {"role": role})
    return APIRouter(prefix=prefix, route_class=guarded, tags=[tag], redirect_slashes=False)


class Tokens:
    """The configured tokens. All of them are compared, in constant time, whatever the first comparison says."""

    def __init__(self, settings: Settings) -> None:
        known = settings.auth.known().values()
        self._digests = [(sha256(token.encode()).digest(), Role[role.upper()], name) for role, name, token in known]

    @property
    def open(self) -> bool:
        return not self._digests

    def caller(self, given: bytes) -> Caller | None:
        """Return whose token it is, None for a wrong one."""
        digest = sha256(given).digest()
        found = [(role, name) for known, role, name in self._digests if hmac.compare_digest(known, digest)]
        return Caller(found[0][0], Actor(found[0][1], "api")) if found else None


class Rates:
    """A bucket of requests for each client: it holds one second's worth and refills steadily."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str, who: str = "") -> float:
        """Take one request from the bucket of an address and a caller. Return 0, or the seconds until there is one."""
        now = self._clock()
        client = network(address), who
        left, then = self._buckets.pop(client, (self._rate, now))
        left = min(self._rate, left + (now - then) * self._rate)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate


def network(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or an IPv6 network of 64 bits. Pure."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((int(ip), 64), strict=False).network_address)


def is_local(host: str) -> bool:
    if _HOST.fullmatch(host) is None:  # evil.example@127.0.0.1 is another host to some clients
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_site(origin: str, host: str) -> bool:
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
        # Base64 takes a third more than the bytes, escapes in a text up to twice as much.
        self._message_max = min(settings.http.request_max, 2 * settings.limits.max_body + BODY_MAX)
        self._room = _Room(max(BODIES_BYTES, self._message_max))
        self._base_path = settings.http.base_path
        self._open_metrics = settings.auth.open_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed, and answer all else with a problem."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        body, answer = _Body(receive, self._room), _SecuredAnswer(send)
        try:
            self._judge(scope, body)
            await self._app(scope, body.receive, answer.send)
        except Problem as problem:
            await answer.refuse(problem)
        except Exception:
            log.exception("a request failed", method=scope["method"], path=scope["path"])
            text = "postdate failed to answer. Its log says why. Look there, then try again."
            await answer.refuse(Problem(500, text))
        finally:
            self._room.left += body.held

    def _judge(self, scope: Scope, body: _Body) -> None:
        host = _origin_form(scope)
        headers = _headers(scope) if host is None else {**_headers(scope), "host": host}
        path = self._place(scope, headers)
        if trick := path_trick(scope.get("raw_path") or path.encode(), path):
            raise Problem(400, f"The path {trick}. Send a plain path, as /openapi.json lists them.")
        address: bytes = (scope.get("raw_path") or b"") + b"?" + scope["query_string"]
        try:
            unquote_to_bytes(address).decode()
        except UnicodeDecodeError:  # replaced letters would be another key
            raise Problem(400, "The address is not UTF-8 text. Percent-encode text in UTF-8.") from None
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_MAX:
            raise Problem(431, f"The headers are too large: more than {HEAD_MAX} bytes.", {"Connection": "close"})
        if _holds_token(scope["query_string"].decode("latin-1")):
            text = "A token in the address would end up in logs. Send the header Authorization: Bearer TOKEN."
            raise Problem(400, text)
        if "content-length" in headers and "transfer-encoding" in headers:
            text = "Content-Length and Transfer-Encoding contradict each other. Send one of them."
            raise Problem(400, text, {"Connection": "close"})
        length = headers.get("content-length", "0")
        body.allow(*self._body_max(path))
        if not length.isascii() or not length.isdigit() or int(length[:20]) > body.most:
            raise body.too_large()
        self._admit(scope, headers, path)

    def _admit(self, scope: Scope, headers: Mapping[str, str], path: str) -> None:
        """Set the caller. Raises ``Problem`` without a valid token where one is needed, and for too many requests.

        A valid token has a rate of its own, so that wrong ones from the same proxy do not lock it out. What needs no
        token has none: a refusal would cost as much as the answer.
        """
        guarded = path.startswith(("/api/", "/-/")) or path == "/metrics"
        try:
            caller = self._caller(scope, headers)
            if caller is None and guarded and not (path == "/metrics" and self._open_metrics):
                raise _unauthorized()
        except Problem as refused:
            if refused.status_code == 401:
                self._limit(scope, "", "without a valid token")
            raise
        if caller is not None:
            scope["postdate.caller"] = caller
        if guarded:
            self._limit(scope, caller.by.who if caller else "?", "with this token" if caller else "without a token")

    def _limit(self, scope: Scope, who: str, which: str) -> None:
        if wait_s := self._rates.wait_s(_address(scope), who):
            text = f"Too many requests {which} from this address. http.requests_per_second sets how many are allowed."
            raise Problem(429, text, {"Retry-After": str(max(1, round(wait_s)))})

    def _body_max(self, path: str) -> tuple[int, str]:
        """Return how many bytes a request's body may have, and what allows them."""
        if path == "/api/v1/messages":
            return self._message_max, "http.request_max and limits.max_body allow"
        return (BULK_MAX if path == "/api/v1/bulk" else BODY_MAX), "This path allows"

    def _place(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Return the path below the prefix under which postdate is served. A proxy may have kept or cut the prefix."""
        path: str = scope["path"]
        prefix = self._base_path
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :] or "/"
        forwarded = headers.get("x-forwarded-prefix", "").rstrip("/")
        if len(forwarded) <= 200 and forwarded.startswith("/") and not path_trick(forwarded.encode("utf-8"), forwarded):
            prefix = forwarded
        scope["root_path"] = prefix
        scope["path"] = f"{prefix}{path}"
        return path

    def _caller(self, scope: Scope, headers: Mapping[str, str]) -> Caller | None:
        if self._tokens.open:
            _judge_local(scope["method"], headers)
            return Caller(Role.ADMIN, Actor("local", "api"))
        kind, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            return None
        caller = self._tokens.caller(token.strip().encode("latin-1", "replace")) if kind.lower() == "bearer" else None
        if caller is None:
            raise _unauthorized()
        return caller


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


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _unauthorized() -> Problem:
    text = "A valid token is required. Send the header Authorization: Bearer TOKEN, with a token of [auth]."
    return Problem(401, text, {"WWW-Authenticate": 'Bearer realm="postdate"'})


def _holds_token(query: str) -> bool:
    """Return whether a query has a parameter that should be a header. Raises ``Problem`` for too many parameters."""
    try:
        given = parse_qsl(query, max_num_fields=_PARAMETERS_MAX)
    except ValueError:
        raise Problem(400, f"The address has more than {_PARAMETERS_MAX} parameters. Send fewer.") from None
    return any(name.lower() in _TOKENS_IN_URL for name, _ in given)


def _origin_form(scope: Scope) -> str | None:
    """Turn an absolute request target into a path, and return its host; None for an ordinary one.

    A server must accept it, and must take its host for that of the header Host (RFC 9112, section 3.2.2).
    """
    raw = scope.get("raw_path") or b""
    absolute = _ABSOLUTE.match(raw)
    if absolute is None:
        return None
    scope["raw_path"] = raw[absolute.end() :] or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("latin-1"))
    return str(absolute[1].decode("latin-1"))


@dataclass
class _Room:
    """How many bytes more the bodies of requests that are not answered yet may have."""

    left: int


class _Body:
    """Reads a request's body within its limits of size and time."""

    def __init__(self, receive: Receive, room: _Room) -> None:
        self._receive = receive
        self._room = room
        self._ended = False
        self._until: float | None = None
        self._allowed_by = ""
        self.most = 0
        self.held = 0

    def allow(self, most: int, allowed_by: str) -> None:
        """Set its largest size, and the words for what allows it."""
        self.most, self._allowed_by = most, allowed_by

    def too_large(self) -> Problem:
        """Return the problem of one that is larger."""
        return Problem(413, f"The request is too large. {self._allowed_by} {self.most} bytes.", {"Connection": "close"})

    async def receive(self) -> Message:
        """Return the next message of the server. Raises ``Problem`` where a limit is exceeded."""
        if self._ended:  # what comes now is the end of the connection
            return await self._receive()
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + BODY_S
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Problem(408, f"The body did not arrive within {BODY_S:.0f} s.", {"Connection": "close"}) from None
        count = len(message.get("body", b""))
        self.held += count
        self._room.left -= count
        if self.held > self.most:
            raise self.too_large()
        if self._room.left < 0:
            text = "Too many bodies arrive at once. Try again."
            raise Problem(503, text, {"Connection": "close", "Retry-After": "2"})
        self._ended = not message.get("more_body", False)
        return message


class _SecuredAnswer:
    """Sends an answer with the security headers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": _secured(message.get("headers", []))}
            self._begun = True
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        """Answer with a problem, unless an answer has begun."""
        if not self._begun:
            response = problem.response()
            start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
            await self.send(start)
            await self.send({"type": "http.response.body", "body": bytes(response.body)})


def _secured(headers: Any) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    return [*given, *(header for header in _HEADERS if header[0] not in names)]
