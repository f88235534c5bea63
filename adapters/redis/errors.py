"""Translates errors of redis-py and of the network into ours, with one text for a person. Done once, here.

Each text gives the fact first and the advice second: ``Redis requires a password. Set redis.password``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as SlowLink

from bridge.core.errors import StoreFull, StoreSilent, StoreUnavailable


class Explicit(LinkError):
    """An error whose text is meant for a person. ``unreachable`` as in ``Explained``."""

    def __init__(self, text: str, unreachable: str | None = None) -> None:
        super().__init__(text)
        self.unreachable = unreachable


class Explained(NamedTuple):
    """What an error means for a person. ``unreachable`` is the bare reason where the server could not be reached."""

    text: str
    unreachable: str | None = None


class _Meaning(NamedTuple):
    """A fact and what to do about it. ``quotes``: Redis's own words follow the fact, because they name the detail."""

    fact: str
    advice: str = ""
    quotes: bool = False

    def text(self, error: str) -> str:
        fact = f"{self.fact} ({error})" if self.quotes else self.fact
        return f"{fact}. {self.advice}" if self.advice else fact


_REFUSED = _Meaning("Redis refuses the user or the password", "Correct redis.username and redis.password")
_CLUSTER_URL = "Write redis+cluster:// in place of redis:// in redis.url"

#: Redis's error codes.
_CODES = {
    "OOM": _Meaning("Redis is at its maxmemory", "Give it more memory. Due messages are still delivered"),
    "MISCONF": _Meaning("Redis cannot write to its disk", "Free disk space there", quotes=True),
    "NOREPLICAS": _Meaning("Redis has fewer replicas than its min-replicas-to-write", "Start a replica"),
    "READONLY": _Meaning("Redis is a replica now. A failover is under way"),
    "LOADING": _Meaning("Redis is loading its data"),
    "BUSY": _Meaning("Redis is busy with a script"),
    "CLUSTERDOWN": _Meaning("the Redis Cluster is down"),
    "MASTERDOWN": _Meaning("the Redis replica has lost its master"),
    "TRYAGAIN": _Meaning("the Redis Cluster is moving a slot"),
    "NOAUTH": _Meaning("Redis requires a password", "Set redis.password"),
    "WRONGPASS": _REFUSED,
    "NOPERM": _Meaning("the Redis user lacks a permission that postdate needs", "Grant it", quotes=True),
    "MOVED": _Meaning("Redis is a node of a cluster", _CLUSTER_URL),
}

#: Errors without a code of their own, of redis-py, of OpenSSL or of the server, by a part of their text.
_PARTS = {
    "without any password configured": _Meaning(
        "redis.password is set and Redis has no password", "Remove the setting"
    ),
    "invalid username-password": _REFUSED,
    "unknown command 'SENTINEL'": _Meaning("the server is not a Sentinel", "Correct redis.url"),
    "CERTIFICATE_REQUIRED": _Meaning("Redis requires a client certificate that it trusts", "Set redis.cert_file"),
    "WRONG_VERSION_NUMBER": _Meaning("Redis does not use TLS on this port", "Correct redis.url (rediss:// uses TLS)"),
    "SELECT is not allowed in cluster mode": _Meaning(
        "Redis is a node of a cluster, which has no numbered databases",
        f"{_CLUSTER_URL}, and remove the database number",
    ),
    "running in protected mode": _Meaning(
        "Redis is in protected mode and accepts local connections only", "Give it a password, and set redis.password"
    ),
    "max number of clients reached": _Meaning("Redis has reached its maxclients", "Raise maxclients"),
    "Protocol error, got": _Meaning("the server is not a Redis", "Correct redis.url"),
}

#: How redis-py begins its errors for a connection that was closed while it greeted.
CLOSED = (
    "Connection closed by server",
    "Error while reading from",
    "Error while writing to",
    "Error 104 while",
    "Error 32 while",
    "Error UNKNOWN while",
)
#: Redis's answer to a database number that is too high.
NO_DATABASE = "DB index is out of range"
_NO_CLUSTER = "cluster support disabled"
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.*?)\.? \(_ssl")
_TLS = re.compile(r"\[(X509|SSL)[^\]]*\] (.*?) \(_ssl")
_PLACE = re.compile(r"Error (-?\d+) connecting to (\S+)\. (.*?)\.?$", re.DOTALL)
_NO_TLS = re.compile(r"Error connecting to (\S+?)\.")


def explain(error: BaseException) -> Explained:
    """Return what an error of redis-py or of the network means. Pure."""
    if isinstance(error, Explicit):
        return Explained(str(error), error.unreachable)
    if isinstance(error, RedisClusterException):
        return _of_cluster(error)
    text = str(error) or type(error).__name__
    for part, meaning in _PARTS.items():
        if part in text:
            return Explained(meaning.text(text))
    code = getattr(error, "status_code", None)  # redis-py removes the codes that it knows from the text
    for word, meaning in _CODES.items():
        if code == word or text.startswith(word) or f" {word} " in f" {text} ":
            return Explained(meaning.text(text))
    if isinstance(error, ResponseError):
        advice = "Another program may write keys under redis.key_prefix"
        return Explained(f"Redis answers with an error ({text}). {advice}")
    return _of_link(text)


def _of_link(text: str) -> Explained:
    """Explain an error of the connection."""
    if found := _UNTRUSTED.search(text):
        return Explained(
            f"Redis shows a certificate that is not trusted ({found[1]}). "
            "Correct redis.ca_file, or the host in redis.url"
        )
    if found := _NO_TLS.fullmatch(text):
        return _away("it closes the connection at once, and may not use TLS: use redis:// in redis.url", found[1])
    if found := _PLACE.search(text):
        if tls := _TLS.search(text):
            of_file = tls[1] == "X509" or tls[2] == "PEM lib"
            what = "redis.ca_file, cert_file or key_file cannot be used" if of_file else f"TLS with {found[2]} failed"
            return Explained(f"{what} ({tls[2]})")
        number = int(found[1])
        return _away(os.strerror(number) if number > 0 else found[3], found[2], "Start it, or correct redis.url")
    if text.startswith("Timeout connecting"):
        reason = "no connection within redis.connect_timeout, or only one side uses TLS"
        return _away(reason, advice="Correct redis.url")
    return _away(text)


def _away(reason: str, place: str = "", advice: str = "") -> Explained:
    at = f" at {place}" if place else ""
    return Explained(f"Redis does not answer{at} ({reason})" + (f". {advice}" if advice else ""), reason)


def _of_cluster(error: RedisClusterException) -> Explained:
    """Explain what redis-py calls "no cluster". It says so whatever the first node answered, so look at the cause."""
    cause: BaseException | None = error
    while isinstance(cause, RedisClusterException):
        cause = cause.__cause__ or cause.__context__
    if "Cluster mode is not enabled" in str(error) and _NO_CLUSTER in str(cause or _NO_CLUSTER):
        return Explained("Redis is not a cluster. Write redis:// in place of redis+cluster:// in redis.url")
    found = explain(cause or Exception(str(error).rpartition(": ")[2]))
    if found.unreachable is None:
        return found
    text = f"no node of the Redis Cluster answers ({found.unreachable}). Start the nodes, or correct redis.url"
    return found._replace(text=text)


def named(error: Exception, connection: Any, tls: bool, greeted: bool) -> Exception:
    """Return an error of the greeting with what the connection knows and the error does not say.

    ``greeted``: the server accepted a connection before, so the settings are right.
    """
    text, place = str(error), f"{connection.host}:{connection.port}"
    if isinstance(error, ResponseError) and NO_DATABASE in text:
        advice = "Lower the number in redis.url, or raise `databases` in redis.conf"
        return Explicit(f"Redis has no database {connection.db}. {advice}")
    if not isinstance(error, LinkError) or not text.startswith(CLOSED) or any(part in text for part in _PARTS):
        return error
    if greeted:
        reason = "it closes new connections at once, and accepted them before"
        return Explicit(*_away(reason, place, "It is starting or stopping, or a proxy in between cannot reach it"))
    want = "a client certificate: set redis.cert_file" if tls else "TLS: use rediss:// in redis.url"
    return Explicit(*_away(f"it closes the connection at once, and may require {want}", place))


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn every error of redis-py and of the network into ``StoreUnavailable``."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
        raise unavailable(error) from error
    except RuntimeError as error:
        # uvloop raises this for a connection that closed between redis-py's last check and the write.
        if "handler is closed" not in str(error):
            raise
        raise unavailable(error) from error


def unavailable(error: Exception) -> StoreUnavailable:
    """Return the error as one of ours."""
    if isinstance(error, StoreUnavailable):
        return error
    text = explain(error).text
    if isinstance(error, SlowLink):
        return StoreSilent(text)
    return StoreFull(text) if text == _CODES["OOM"].text("") else StoreUnavailable(text)
