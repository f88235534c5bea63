"""Serves the page: the shell at "/" and its files under "/page". All are read once, so no request reaches the disk.

The page works under any path: its links are relative to ``<base>``, which names the path that a reverse proxy cut off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

_FOLDER = Path(__file__).with_name("page")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
_SHELL = "index.html"
#: Where the shell gets its <base>.
_BASE_MARK = "<!-- base -->"
#: Inline scripts and styles, frames and other hosts are all refused.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_PREFIX_MAX = 256


class PageFile(NamedTuple):
    """A file as it is served."""

    content: bytes
    kind: str
    etag: str


def read_files(folder: Path = _FOLDER) -> Mapping[str, PageFile]:
    """Return the files of the page by their path in ``folder``; others than scripts, styles and pictures are not
    served."""
    found = {
        file.relative_to(folder).as_posix(): _file(file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix in _TYPES
    }
    return MappingProxyType(found)


def page_router(base_path: str = "") -> APIRouter:
    """Return the routes of the page. ``base_path`` is the path under which a reverse proxy serves postdate."""
    files = read_files()
    shell = files[_SHELL].content.decode()
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        prefix = prefix_of(request.headers.get("x-forwarded-prefix"), base_path)
        # Two proxies may give the same address different prefixes, so the shell is in no shared cache.
        return _answer(request, _file(based(shell, prefix).encode(), _TYPES[".html"]), "private, no-cache")

    @router.api_route("/page/{path:path}", methods=["GET", "HEAD"])
    async def page_file(request: Request, path: str) -> Response:
        if path == _SHELL or path not in files:
            return PlainTextResponse("The page has no such file.", 404, headers=_HEADERS)
        return _answer(request, files[path], "no-cache")

    return router


def prefix_of(forwarded: str | None, base_path: str) -> str:
    """Return the path in front of the page's own, without a slash at its end. Pure.

    The header of a proxy wins over the setting. A header that is no plain path is ignored.
    """
    given = (forwarded or "").rstrip("/")
    if given and len(given) <= _PREFIX_MAX and _PREFIX.fullmatch(given):
        return given
    return base_path.rstrip("/")


def based(shell: str, prefix: str) -> str:
    """Return the shell with its <base>. Pure. Without a prefix the browser takes the address of the page."""
    return shell.replace(_BASE_MARK, f'<base href="{escape(prefix)}/">' if prefix else "", 1)


def _file(content: bytes, kind: str) -> PageFile:
    return PageFile(content, kind, f'"{sha256(content).hexdigest()[:24]}"')


def _answer(request: Request, file: PageFile, caching: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": caching, "ETag": file.etag, "Vary": "X-Forwarded-Prefix"}
    tags = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if file.etag in tags:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.kind)
