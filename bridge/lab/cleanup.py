"""What a run cannot clear away behind it: where it is left, under which name, and how to remove it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bridge.core.errors import PostdateError, Unreachable
from bridge.telemetry.printable import complain

#: Where things of a run are, and how somebody deletes them by their name.
_PLACES: Mapping[str, tuple[str, str]] = {
    "rabbitmq": (
        "on RabbitMQ",
        "delete its queues (`rabbitmqctl delete_queue`) and exchanges (`rabbitmqadmin delete exchange`), or both on "
        "its management page",
    ),
    "kafka": ("on Kafka", "delete its topics (`kafka-topics.sh`) and its group (`kafka-consumer-groups.sh`)"),
    "redis": ("in Redis", "`redis-cli --scan --pattern '{{{name}*' | xargs redis-cli unlink`"),
}


@contextmanager
def cleared(place: str, name: str, remove: Callable[[], None]) -> Iterator[None]:
    """Remove the run's things from a place at the end of the block, however it ends.

    Where that fails, the error that ended the block says so as well, because the last line is the one that is read;
    an interrupt has no text, so then it is said before.
    """
    try:
        yield
    except PostdateError as error:
        if why := _why_not(remove):
            raise type(error)(f"{error}. {left(place, name, why)}") from error
        raise
    except BaseException:
        if why := _why_not(remove):
            complain(f"{left(place, name, why)}.")
        raise
    if why := _why_not(remove):
        raise type(why)(left(place, name, why)) from why


def _why_not(remove: Callable[[], None]) -> PostdateError | None:
    try:
        remove()
    except PostdateError as error:
        return error
    return None


def left(place: str, name: str, why: PostdateError) -> str:
    """Pure: the sentence about it. Who does not answer cannot tell whether he still has it."""
    where, how = _PLACES[place]
    may, when = ("may be", "when it answers, ") if isinstance(why, Unreachable) else ("are", "")
    return f"Things named {name}... {may} left {where} ({why}): {when}{how.format(name=name)}"
