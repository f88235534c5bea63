"""Translates RabbitMQ's codes and texts for a message it does not take into refusals. Pure.

Codes: AMQP 0-9-1, section 1.2 "AMQP-defined constants"; texts: as RabbitMQ 3.10 and 4.3 write them.
"""

from __future__ import annotations

import re

from bridge.core.message import Refusal
from bridge.core.reasons import Reason, ReasonKind

CONNECTION_FORCED = 320
NO_ROUTE = 312
ACCESS_REFUSED, NOT_FOUND = 403, 404
#: RESOURCE_ERROR and INTERNAL_ERROR: a trouble of the broker, such as a node that stops, and not of the message.
_BROKERS_OWN = frozenset({506, 541})
#: RabbitMQ's replies for a queue on a node that is down, which it calls not found. 4.4 takes more than a minute for it.
_AWAY = ("is down or inaccessible", "failed to perform operation on queue")

_EXCHANGE = re.compile(r"(?:no exchange|write access to exchange|exchange) '([^']*)' in vhost")
_TOPIC = re.compile(r"access to topic '([^']*)' in exchange '([^']*)'")
_MAX_SIZE = re.compile(r"larger than (?:configured )?max size (\d+)")

#: A nacked message was refused by a queue: it is full, or its process is gone (tried: 3.10.8, 4.3.6).
NACKED = Refusal(
    Reason(ReasonKind.NACKED, "RabbitMQ refused it (basic.nack): a queue is full (reject-publish) or has crashed")
)


def unroutable(exchange: str, routing_key: bytes, text: str) -> Refusal:
    """Return the refusal of a returned message: no queue was bound for it."""
    key = routing_key.decode("utf-8", "backslashreplace")
    sentence = "no queue was bound to exchange '{exchange}' for routing key '{key}' ({text})"
    return Refusal(Reason(ReasonKind.UNROUTABLE, sentence, {"exchange": exchange, "key": key, "text": text}))


def loop(routing_key: bytes) -> Refusal:
    """Return the refusal of a routing key that leads back to postdate: the message would never leave."""
    queue = routing_key.decode("utf-8", "backslashreplace")
    text = "its routing key '{queue}' is a queue of postdate, so it would never leave"
    return Refusal(Reason(ReasonKind.LOOP, text, {"queue": queue}), lasting=True)


def too_large(size: int, size_max: int) -> Refusal:
    """Return the refusal of a body above the broker's ``max_message_size``."""
    text = "its body has {size} bytes, and RabbitMQ allows {size_max}"
    return Refusal(Reason(ReasonKind.TOO_LARGE, text, {"size": size, "size_max": size_max}), lasting=True)


def headers_too_large(frame_max: int) -> Refusal:
    """Return the refusal of properties that do not fit into one frame."""
    text = "its headers do not fit into a frame of {frame_max} bytes"
    return Refusal(Reason(ReasonKind.TOO_LARGE, text, {"frame_max": frame_max}), lasting=True)


def of_close(code: int, text: str) -> Refusal:
    """Return the refusal for the message over which the broker closed a channel or a connection."""
    if code == NOT_FOUND:
        return Refusal(Reason(ReasonKind.MISSING_EXCHANGE, "{text}", {"text": text}))
    if code == ACCESS_REFUSED:
        return Refusal(Reason(ReasonKind.FORBIDDEN, "{text}", {"text": text}))
    if _MAX_SIZE.search(text):
        return Refusal(Reason(ReasonKind.TOO_LARGE, "{text}", {"text": text}), lasting=True)
    sentence = "RabbitMQ closed the channel because of it: {code} {text}"
    return Refusal(
        Reason(ReasonKind.REJECTED, sentence, {"code": code, "text": text}), lasting=code not in _BROKERS_OWN
    )


def no_right(text: str) -> str:
    """Return the sentence, without its final stop, for a lack of rights."""
    return f"RabbitMQ does not allow it ({text.removeprefix('ACCESS_REFUSED - ')}). Grant that user the right"


def cause_in(text: str) -> tuple[str, bytes | None] | None:
    """Return the exchange that a 404 or 403 names, and the routing key where topic permissions are the cause."""
    topic = _TOPIC.search(text)
    if topic is not None:
        return topic.group(2), topic.group(1).encode()
    found = _EXCHANGE.search(text)
    return (found.group(1), None) if found else None


def max_size_in(text: str) -> int | None:
    """Return the broker's ``max_message_size`` where the text names it."""
    found = _MAX_SIZE.search(text)
    return int(found.group(1)) if found else None


def is_gone(error: BaseException) -> bool:
    """Return whether RabbitMQ closed a channel because something does not exist, not even on a node that is down."""
    return getattr(error, "reply_code", 0) == NOT_FOUND and not is_away(str(error))


def is_away(reply: str) -> bool:
    """Return whether RabbitMQ calls a queue not found that is on a node that is down."""
    return any(words in reply for words in _AWAY)
