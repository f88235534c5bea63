"""The errors of postdate: a small tree, ordered by what the operator should do.

Adapters translate foreign exceptions (pika's, redis-py's) into these once, at the edge.
An unanswered publish is an outcome and not an error (``bridge.core.message.Outcome``).
"""


class PostdateError(Exception):
    """The root. Its text tells a person what is wrong, where, and what to do."""


class SettingsError(PostdateError):
    """Wrong settings or wrong use: correct the file, the environment or the command line (exit 2)."""


class HeaderError(PostdateError):
    """A delay header that is not a moment. The message becomes a dead letter, because its producer made a mistake."""


class NotFound(PostdateError):
    """No message, key or route of that name (exit 3)."""


class Unreachable(PostdateError):
    """A broker or the store does not answer, or cannot do the work now: try again later (exit 4)."""


class StoreUnavailable(Unreachable):
    """The store does not answer, or refuses writes for now (memory full, disk full, loading, failing over)."""


class ShardsUnavailable(StoreUnavailable):
    """Some shards do not answer. The call was carried out in the others, with the sum ``worked``."""

    def __init__(self, text: str, shards: frozenset[int], worked: int) -> None:
        super().__init__(text)
        self.shards = shards
        self.worked = worked


class BrokerUnavailable(Unreachable):
    """There is no connection to a broker."""


class Refused(PostdateError):
    """Understood but not done: the message is claimed already, or it is not allowed (exit 5)."""


class TopologyMismatch(Refused):
    """A queue or exchange exists with other arguments than postdate needs. Nothing was changed."""


class StoreUnfit(PostdateError):
    """The store runs with settings that can lose messages (exit 1). Change them there."""


#: Exit codes of the commands.
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
