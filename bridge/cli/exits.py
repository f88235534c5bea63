"""Exit codes: what a script can tell from how a command ended."""

from __future__ import annotations

from bridge.errors import NotFound, PostdateError, Refused, SettingsError, Unreachable

FINE, FAILED, WRONG, NOT_FOUND, UNREACHABLE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

_CODES: tuple[tuple[type[PostdateError], int], ...] = (
    (SettingsError, WRONG),
    (NotFound, NOT_FOUND),
    (Unreachable, UNREACHABLE),
    (Refused, REFUSED),
)


def code_of(error: PostdateError) -> int:
    """The exit code for an error of the house."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
