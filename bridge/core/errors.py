"""The errors of the house: a small tree, ordered by what the person who sees one should do.

Foreign exceptions (pika's, redis-py's) are translated into these once, at the edge, in the adapter that met them.
An unanswered publish is an outcome, not an error: see ``bridge.core.message.Outcome``.
"""


class PostdateError(Exception):
    """Root. Its text is one sentence for a person: what is wrong, where, and what to do."""


class SettingsError(PostdateError):
    """Wrong settings or wrong use: correct the file, the environment or the command line (exit 2)."""


class HeaderError(PostdateError):
    """A delay header that is not a moment: the producer's mistake. The message becomes a dead letter."""


class NotFound(PostdateError):
    """No message, key or route of that name (exit 3)."""


class Unreachable(PostdateError):
    """A broker or the store does not answer, or cannot take the work now: try again later (exit 4)."""


class StoreUnavailable(Unreachable):
    """The store cannot be asked, or refuses writes for now (memory full, disk full, loading, failing over)."""


class ShardsUnavailable(StoreUnavailable):
    """Some shards cannot be asked. The part of the call that was for the others was carried out, with the sum
    ``worked``."""

    def __init__(self, text: str, shards: frozenset[int], worked: int) -> None:
        super().__init__(text)
        self.shards = shards
        self.worked = worked


class BrokerUnavailable(Unreachable):
    """The connection to a broker is not there."""


class Refused(PostdateError):
    """Understood and not done: the message is claimed already, or it is not allowed (exit 5)."""


class TopologyMismatch(Refused):
    """A queue or exchange exists with other arguments than postdate needs; nothing was changed."""


class StoreUnfit(PostdateError):
    """The store runs with settings under which messages can be lost (exit 1): change them there."""


#: Exit codes: what a script can tell from how a command ended.
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
