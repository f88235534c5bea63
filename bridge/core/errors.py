"""The errors of postdate: a small tree, ordered by what the reader should do.

Foreign exceptions (pika's, redis-py's) are translated into these once, at the edge, in the adapter that met them.
An unanswered publish is no error but an outcome: ``bridge.core.message.Outcome``.
"""

from __future__ import annotations

from bridge.core.reasons import Reason


class PostdateError(Exception):
    """Root. Its text says what is wrong and where, then what to do, as two sentences."""


class SettingsError(PostdateError):
    """Wrong settings or usage. Correct the file, the environment or the command line (exit 2)."""


class HeaderError(PostdateError):
    """A delay header that names no time: the producer's mistake. The message becomes a dead letter."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason


class BadValue(ValueError):
    """A text or a header value that names no duration, moment or number. ``text`` is a template, as in ``Reason``."""

    def __init__(self, text: str, **values: object) -> None:
        super().__init__(text.format_map(values))
        self.text = text
        self.values = values


class NotFound(PostdateError):
    """No message or key of that name (exit 3)."""


class Unreachable(PostdateError):
    """A broker or the store does not answer, or cannot do the work now. Try again later (exit 4)."""


class StoreUnavailable(Unreachable):
    """The store does not answer, or refuses writes for now (memory full, disk full, loading, failing over)."""


class StoreSilent(StoreUnavailable):
    """The store did not answer in time. It may be away, or this process too busy to hear it."""


class StoreFull(StoreUnavailable):
    """The store answers, and has no memory for anything new. What is due is still delivered."""


class ShardsUnavailable(StoreUnavailable):
    """Some shards do not answer. The call was carried out on the others; ``worked`` is the sum of their answers."""

    def __init__(self, text: str, shards: frozenset[int], worked: int) -> None:
        super().__init__(text)
        self.shards = shards
        self.worked = worked


class BrokerUnavailable(Unreachable):
    """A broker does not answer, or closed the connection."""


class Refused(PostdateError):
    """A valid request that was not carried out: the message is claimed, or it is not allowed (exit 5)."""


class TopologyMismatch(Refused):
    """A queue, exchange or topic exists with other arguments than postdate needs. Nothing was changed."""


class StoreUnfit(PostdateError):
    """The store runs with settings under which messages can be lost. Change them there (exit 1)."""


#: Exit codes, for scripts.
FINE, FAILED, WRONG, NOT_FOUND, UNREACHABLE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

_CODES: tuple[tuple[type[PostdateError], int], ...] = (
    (SettingsError, WRONG),
    (NotFound, NOT_FOUND),
    (Unreachable, UNREACHABLE),
    (Refused, REFUSED),
)


def code_of(error: PostdateError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
