"""Access tokens for Kafka's SASL mechanism OAUTHBEARER: from an OAuth server, or signed for AWS MSK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import SaslAuthenticationFailed

from bridge.core.errors import SettingsError
from bridge.settings import Kafka
from bridge.settings.oauth import RENEWED, AccessToken, fetch_token

#: How long a connection with a valid token waits for a newer one.
_PATIENCE_S = 0.5


class NoToken(SaslAuthenticationFailed):
    """There is no token to log in with. The text is a sentence for an operator.

    aiokafka lets no other errors out of a connection attempt without ending its own tasks.
    """

    def __str__(self) -> str:
        return str(self.args[0])  # aiokafka's own has a number and the class before it


class TokenProvider(AbstractTokenProvider):
    """One client's token. Each new connection gets one that is valid for a while."""

    def __init__(self, fetch: Callable[[], AccessToken]) -> None:
        """``fetch`` may block. It raises an error with a sentence where there is no token."""
        self._fetch = fetch
        self._token: AccessToken | None = None
        self._asking: asyncio.Task[AccessToken] | None = None

    async def token(self) -> str:
        """Return the token. Raises ``NoToken``. A server that is slow or down delays nothing while a token is valid."""
        known = self._token
        if known is not None and known.fresh:
            return known.text
        if self._asking is None:
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._fetch))
            self._asking.add_done_callback(self._answered)
        asking, valid = self._asking, known is not None and time.monotonic() < known.ends_at
        await asyncio.wait((asking,), timeout=_PATIENCE_S if valid else None)
        if asking.done() and asking.exception() is None:
            return asking.result().text
        if known is not None and valid:
            return known.text
        raise NoToken(str(asking.exception())) from asking.exception()

    def forget(self) -> None:
        """Ask for a new token at the next connection: the broker refused this one."""
        self._token = None

    def _answered(self, asking: asyncio.Task[AccessToken]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            self._token = asking.result()


def token_provider(rules: Kafka) -> TokenProvider:
    """Return the provider that ``kafka.sasl_mechanism`` asks for."""
    if rules.sasl_mechanism == "AWS_MSK_IAM":
        return TokenProvider(lambda: _signed(rules.aws_region))
    return TokenProvider(lambda: fetch_token(rules, "kafka"))


def _signed(region: str) -> AccessToken:
    """Sign a token with the credentials that boto3 finds. Raises ``SettingsError``."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise SettingsError(
            "kafka.sasl_mechanism AWS_MSK_IAM needs a package. Install the extra aws: deploy/README.md, Install"
        ) from None
    try:
        text, ends_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # botocore has many, without a common base
        raise SettingsError(f"AWS gives no credentials for MSK ({error}). Check the role or the environment") from error
    lifetime_s = ends_ms / 1000 - time.time()
    now = time.monotonic()
    return AccessToken(text, now + RENEWED * lifetime_s, now + lifetime_s)
