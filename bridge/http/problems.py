"""Errors of the API as RFC 9457 problem details: a fact and what to do, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from bridge.core.errors import NOT_FOUND, NotFound, PostdateError, Refused, SettingsError, StoreUnfit, Unreachable
from bridge.operate.documents import VerbResult
from bridge.operate.verbs import NotThere
from bridge.telemetry.printable import as_sentence

MEDIA_TYPE = "application/problem+json"
_STATUS: tuple[tuple[type[PostdateError], int], ...] = (
    (SettingsError, 422),
    (NotFound, 404),
    (Refused, 409),
    (Unreachable, 503),
    (StoreUnfit, 503),
)
#: The members that say why nothing was done.
_WHY = ("at", "at_ms", "lease_until")
#: As much of an unknown member's name is repeated.
_NAME_MAX = 100
_GENERAL = {
    404: "There is no such path. /openapi.json lists all paths.",
    405: "This path does not allow this method. The Allow header lists those that it does.",
}


class Problem(HTTPException):
    """A request that is answered with an error. ``more`` are further members, such as the message's state.

    FastAPI answers 400 to any other error that ends the reading of a body.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, /, **more: object) -> None:
        super().__init__(status, detail, headers)
        self.more = more

    def response(self) -> Response:
        content = {
            "type": "about:blank",
            "title": HTTPStatus(self.status_code).phrase,
            "status": self.status_code,
            "detail": self.detail,
            **self.more,
        }
        return Response(json.dumps(content), self.status_code, self.headers, MEDIA_TYPE)


def problem_of(error: PostdateError) -> Problem:
    if isinstance(error, NotThere):
        return refusal(error.result)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {"Retry-After": "2"} if status == 503 else None
    return Problem(status, as_sentence(str(error)), headers)


def refusal(result: VerbResult) -> Problem:
    """Return why nothing was done: the message's real state, also where it has left the store."""
    why = {name: getattr(result, name) for name in _WHY if name in result.model_fields_set}
    status = 404 if result.code == NOT_FOUND else 409
    return Problem(status, as_sentence(result.text), id=result.id, state=result.state, **why)


def add_handlers(app: FastAPI) -> None:
    """Let every error of the app be a problem."""
    for kind in (PostdateError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)


async def _answer(_: Request, error: Exception) -> Response:
    match error:
        case Problem():
            return error.response()
        case PostdateError():
            return problem_of(error).response()
        case HTTPException():
            detail = _GENERAL.get(error.status_code) or as_sentence(str(error.detail))
            return Problem(error.status_code, detail, error.headers).response()
        case RequestValidationError():
            return _mistakes(error).response()
    raise error


def _mistakes(error: RequestValidationError) -> Problem:
    if broken := next((mistake for mistake in error.errors() if mistake["type"] == "json_invalid"), None):
        detail = f"The body is not valid JSON: {broken['ctx']['error']} at character {broken['loc'][1]}."
        return Problem(400, detail)
    mistakes = [_mistake(mistake) for mistake in error.errors()[:20]]
    return Problem(422, " ".join(mistake["text"] for mistake in mistakes), errors=mistakes)


def _mistake(error: Mapping[str, Any]) -> dict[str, str]:
    """Return one mistake: where it is, and a sentence. Values are not repeated."""
    where: Sequence[object] = error.get("loc", ())
    place = ".".join(str(part)[:_NAME_MAX] for part in where[1:])
    kind = str(where[0]) if where else "request"
    text = str(error.get("msg", "is wrong")).removeprefix("Value error, ")
    if kind == "body" and not place and error.get("type") == "model_attributes_type":
        text = "it is no JSON object, or came without the header Content-Type: application/json"
    subject = f"{kind} {place}".rstrip()
    return {"where": subject, "text": as_sentence(f"{subject}: {text}")}
