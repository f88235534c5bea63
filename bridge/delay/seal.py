"""The signature by which postdate knows the retry state that it wrote itself. Pure.

A returned message carries its state in headers, and anyone who publishes can write headers. So postdate signs the state
with a secret that all instances read from the store, and believes no other. The signature binds route, attempt,
first failure and ``x-retry-id``, not the body: error handlers on Kafka may serialize a body again.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

#: The header with the signature.
SIGNATURE = "x-retry-signature"
_BYTES = 16


class Seal:
    """Signs the retry state of one route's messages."""

    def __init__(self, secret: Callable[[], bytes], route: str) -> None:
        """``secret`` returns the store's present one: a store that was emptied gets another."""
        self._secret = secret
        self._route = route.encode()

    def sign(self, own_id: bytes, attempt: int, first_ms: int) -> bytes:
        """Return the signature as 32 hexadecimal digits."""
        text = b"%b\0%d\0%d\0%b" % (self._route, attempt, first_ms, own_id)
        return hmac.digest(self._secret(), text, "sha256")[:_BYTES].hex().encode()

    def fits(self, own_id: bytes, attempt: int, first_ms: int, given: bytes) -> bool:
        """Return whether postdate wrote this state."""
        return hmac.compare_digest(self.sign(own_id, attempt, first_ms), given)
