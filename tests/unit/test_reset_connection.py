"""A connection that RabbitMQ reset while this process stood still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pika.exceptions import StreamLostError

from adapters.rabbitmq.connection import HotConnection


class _Connection(HotConnection):
    """One that is open, with a socket of which a write raises an error."""

    def __init__(self, error: Exception) -> None:
        self.ended: list[Any] = []

        def write(data: bytes) -> None:
            raise error

        self._transport = SimpleNamespace(write=write)

    def _terminate_stream(self, error: Exception | None) -> None:
        self.ended.append(error)


def test_what_is_sent_over_a_reset_socket_ends_the_connection_and_raises_nothing() -> None:
    connection = _Connection(RuntimeError("unable to perform operation on <UVPoll closed=True>; the handler is closed"))
    connection._adapter_emit_data(b"heartbeat")
    (error,) = connection.ended
    assert isinstance(error, StreamLostError)


def test_any_other_error_is_raised() -> None:
    connection = _Connection(RuntimeError("a mistake"))
    with pytest.raises(RuntimeError, match="a mistake"):
        connection._adapter_emit_data(b"heartbeat")
    assert not connection.ended
