"""Showing a URL without its secrets."""

from __future__ import annotations

DOTS = "***"


def mask_url(url: str) -> str:
    """Return ``url`` for people's eyes: the user and the hosts stay, the password and every query value become dots.

    For URLs that ``load`` accepted; other text may hold a password without an ``@`` behind it. It errs on the side
    of hiding: everything before the last ``@`` counts as the user's part, because a password with an unescaped ``/``
    or ``@`` in it would else be shown from there on.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DOTS
    user, at, place = rest.rpartition("@")
    place, question, query = place.partition("?")
    return f"{scheme}://{_mask_user(user)}{at}{place}{question}{_mask_query(query)}"


def _mask_user(user: str) -> str:
    """``user:password`` keeps the user; a lone word is hidden too, as many write only their password there."""
    if not user:
        return ""
    name, colon, _ = user.partition(":")
    return f"{name}:{DOTS}" if colon else DOTS


def _mask_query(query: str) -> str:
    """redis-py and pika take passwords from the query as well, so only the names of its values are shown."""
    parts = (part.partition("=") for part in query.split("&") if part)
    return "&".join(f"{name}={DOTS}" if equals else DOTS for name, equals, _ in parts)
