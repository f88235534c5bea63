"""Access tokens from an OAuth 2 server, by client credentials (RFC 6749, section 4.4). Blocking."""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode
from urllib.request import Request, urlopen

from bridge.core.errors import BrokerUnavailable
from bridge.settings.model import OAuth
from bridge.settings.urls import TokenServer

_TIMEOUT_S = 5.0
#: For a server that does not say how long its token is valid.
_LIFETIME_S = 60.0
#: A token is replaced after this part of its life, so that a server that is down for a while does no harm.
RENEWED = 0.8
_SHOWN_MAX = 200
_ANSWER_MAX = 1024 * 1024


class AccessToken(NamedTuple):
    """A token, and the moments (by the monotonic clock) from which it is to be renewed and is invalid."""

    text: str
    renew_at: float
    ends_at: float

    @property
    def fresh(self) -> bool:
        """Whether it need not be renewed yet."""
        return time.monotonic() < self.renew_at


class _ServerAnswer(NamedTuple):
    status: int
    members: Mapping[str, Any]


def fetch_token(rules: OAuth, section: str) -> AccessToken:
    """Ask the server for a new token. ``section`` is that of the settings, for the sentence.

    The secret is read again from its file. Raises ``BrokerUnavailable`` with the reason.
    """
    try:
        context = ssl.create_default_context(cafile=rules.oauth_ca_file or None)
    except OSError as error:
        raise BrokerUnavailable(f"{section}.oauth_ca_file cannot be used ({error})") from error
    url = rules.oauth_token_url or _token_url(rules, section, context)
    began = time.monotonic()
    scope = {"scope": rules.oauth_scope} if rules.oauth_scope else {}
    form = urlencode({"grant_type": "client_credentials", **scope}).encode()
    answer = _ask(Request(url, form, {"Authorization": _login(rules)}), context)  # noqa: S310 (the settings check it)
    return _read(answer, began, url, rules, section)


def _token_url(rules: OAuth, section: str, context: ssl.SSLContext) -> str:
    """Return the token endpoint that the issuer publishes (OpenID Connect Discovery)."""
    issuer = rules.oauth_issuer.rstrip("/")
    answer = _ask(Request(f"{issuer}/.well-known/openid-configuration"), context)  # noqa: S310 (as above)
    try:
        return TokenServer().read(answer.members["token_endpoint"])
    except (KeyError, ValueError):
        text = f"{issuer} publishes no token endpoint ({answer.status}). Set {section}.oauth_token_url"
        raise BrokerUnavailable(text) from None


def _login(rules: OAuth) -> str:
    """Return the header Authorization: id and secret, each encoded as in a form (RFC 6749, section 2.3.1)."""
    pair = quote_plus(rules.oauth_client_id), quote_plus(rules.oauth_client_secret.get_secret_value())
    return f"Basic {b64encode(':'.join(pair).encode()).decode()}"


def _ask(request: Request, context: ssl.SSLContext) -> _ServerAnswer:
    try:
        with urlopen(request, timeout=_TIMEOUT_S, context=context) as found:  # noqa: S310 (as above)
            return _ServerAnswer(found.status, _members(found.read(_ANSWER_MAX)))
    except HTTPError as refused:
        with refused:
            return _ServerAnswer(refused.code, _members(refused.read(_ANSWER_MAX)))
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise BrokerUnavailable(f"no token from {request.full_url} ({reason})") from error


def _members(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read(answer: _ServerAnswer, began: float, url: str, rules: OAuth, section: str) -> AccessToken:
    """Return the token of an answer. Raises ``BrokerUnavailable`` where there is none."""
    text, given = (answer.members.get(name) for name in ("access_token", "expires_in"))
    if answer.status == 200 and isinstance(text, str) and text:
        lifetime_s = float(given) if isinstance(given, int | float) and given > 0 else _LIFETIME_S
        return AccessToken(text, began + RENEWED * lifetime_s, began + lifetime_s)
    error = " ".join(str(found) for name in ("error", "error_description") if (found := answer.members.get(name)))
    why = f"{answer.status} {error}".strip()[:_SHOWN_MAX]
    if answer.status in (400, 401, 403):
        raise BrokerUnavailable(
            f"{url} gives client '{rules.oauth_client_id}' no token ({why}). "
            f"Correct {section}.oauth_client_id, oauth_client_secret and oauth_scope"
        )
    raise BrokerUnavailable(f"{url} gives no token ({why})")
