"""Serves the page: the shell at "/" and its files under "/page". All are read once, so no request reaches the disk.

``access`` adds the headers that forbid inline scripts and other hosts. The page works under any path: its links are
relative to ``<base>``, which names the prefix under which a reverse proxy serves postdate.
"""

from __future__ import annotations

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


class PageFile(NamedTuple):
    """A file as it is served."""

    content: bytes
    kind: str
    etag: str


def read_files(folder: Path = _FOLDER) -> Mapping[str, PageFile]:
    """Return the files of the page by their path in ``folder``. Files of other types are not served."""
    found = {
        file.relative_to(folder).as_posix(): _file(file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix in _TYPES
    }
    return MappingProxyType(found)


def page_routes() -> APIRouter:
    files = read_files()
    shell = files[_SHELL].content.decode()
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        return _answer(request, _file(based(shell, request.scope.get("root_path", "")).encode(), _TYPES[".html"]))

    @router.api_route("/page/{path:path}", methods=["GET", "HEAD"])
    async def page_file(request: Request, path: str) -> Response:
        if path == _SHELL or path not in files:
            return PlainTextResponse("The page has no such file.", 404)
        return _answer(request, files[path])

    return router


def based(shell: str, prefix: str) -> str:
    """Return the shell with its <base>. Pure. Without a prefix the browser takes the address of the page."""
    return shell.replace(_BASE_MARK, f'<base href="{escape(prefix.rstrip("/"))}/">' if prefix else "", 1)


def _file(content: bytes, kind: str) -> PageFile:
    return PageFile(content, kind, f'"{sha256(content).hexdigest()[:24]}"')


def _answer(request: Request, file: PageFile) -> Response:
    # The browser asks each time whether a file changed, so a new version never meets old files. No shared cache keeps
    # the shell: it depends on the prefix.
    headers = {"Cache-Control": "private, no-cache", "ETag": file.etag}
    known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.kind)
