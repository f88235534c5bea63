"""From a URL to a client: standalone, Sentinel or Cluster; and redis-py's errors into ours, once, here.

redis-py repeats a command that timed out, ten times by default. Every script here is safe to repeat, but a repeat
inside the client would hide an outage from us for minutes, so the client repeats nothing and the loops decide.
RESP2 is asked for: it saves a round trip for each connection and keeps out RESP3's maintenance notices, which in 8.1
leave stale connections in the pool (redis-py issue 4252).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from adapters.redis.cluster import Cluster
from adapters.redis.pack import pack_fast
from adapters.redis.sentinel import (
    AWAY,
    LOOK_S,
    FollowingConnection,
    MasterAway,
    NoMaster,
    Sentinels,
    ask_role,
    master_client,
)
from bridge.core.errors import SettingsError, StoreUnavailable
from bridge.settings import Redis as RedisSettings

Client = Redis | Cluster


def connect(settings: RedisSettings) -> Client:
    """A client that has not connected yet. Raises ``SettingsError`` for a URL that names no server."""
    url = urlsplit(settings.url.get_secret_value())
    options = _options(settings, url.scheme.startswith("rediss"))
    if url.username and not options.get("username"):
        options["username"] = unquote(url.username)
    if url.password and not options.get("password"):
        options["password"] = unquote(url.password)
    if url.scheme.endswith("+cluster"):
        return _cluster(url.netloc.rpartition("@")[2], options)
    path = [part for part in url.path.split("/") if part]
    if url.scheme.endswith("+sentinel"):
        return _sentinel(url.netloc.rpartition("@")[2], path, parse_qs(url.query), options)
    database = path[0] if path else "0"
    if not database.isdecimal():
        raise SettingsError(f"redis.url: the database is a number, not {database!r}")
    return pack_fast(Redis(host=url.hostname or "127.0.0.1", port=url.port or 6379, db=int(database), **options))


def _options(settings: RedisSettings, tls: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": settings.timeout / 1000,
        "socket_connect_timeout": settings.connect_timeout / 1000,
        "socket_keepalive": True,
        "client_name": "postdate",
        "redis_connect_func": _greet,
    }
    if settings.username:
        options["username"] = settings.username
    if settings.password.get_secret_value():
        options["password"] = settings.password.get_secret_value()
    if tls:
        options["ssl"] = True
        options["ssl_ca_certs"] = settings.ca_file or None
        options["ssl_certfile"] = settings.cert_file or None
        options["ssl_keyfile"] = settings.key_file or None
    return options


async def _greet(connection: Any) -> None:
    """redis-py's own greeting. What the server does not say of its refusal, and the connection knows, is added here."""
    try:
        await connection.on_connect()
        if isinstance(connection, FollowingConnection):
            await ask_role(connection)
    except ResponseError as error:
        if _NO_DATABASE in str(error):
            raise ResponseError(f"{_NO_DATABASE}: {connection.db}") from error
        raise
    except LinkError as error:
        if str(error).startswith(_HUNG_UP):
            place, tls = f"{connection.host}:{connection.port}", isinstance(connection, SSLConnection)
            raise LinkError(f"{_AT_ONCE} {place}, {'with' if tls else 'without'} TLS ({error})") from error
        raise


def _hosts(netloc: str, port: int) -> list[tuple[str, int]]:
    hosts = []
    for part in netloc.split(","):
        split = urlsplit(f"//{part}")
        hosts.append((split.hostname or "127.0.0.1", split.port or port))
    return hosts


def _cluster(netloc: str, options: dict[str, Any]) -> Cluster:
    from redis.asyncio.cluster import ClusterNode

    del options["retry"], options["redis_connect_func"]  # it has its own
    return Cluster(
        options["socket_timeout"],
        startup_nodes=[ClusterNode(host, port) for host, port in _hosts(netloc, 6379)],
        retry=Retry(NoBackoff(), 0),
        **options,
    )


def _sentinel(netloc: str, path: list[str], query: dict[str, list[str]], options: dict[str, Any]) -> Redis:
    """The Sentinels get the same TLS as the master: who answers for them is told its password."""
    if not path:
        raise SettingsError("redis.url: redis+sentinel://host:26379/NAME needs the name of the master after the slash")
    tls = bool(options.pop("ssl", False))
    secure = {key: value for key, value in options.items() if key.startswith("ssl_")} | {"ssl": tls}
    plain = {key: options[key] for key in ("protocol", "retry", "socket_connect_timeout", "redis_connect_func")}
    password = query.get("sentinel_password", [""])[0]
    if password:
        plain["password"] = password
    plain["socket_timeout"] = min(options["socket_timeout"], LOOK_S)
    clients = [Redis(host=host, port=port, **plain, **secure) for host, port in _hosts(netloc, 26379)]
    database = int(path[1]) if len(path) > 1 and path[1].isdecimal() else 0
    sentinels = Sentinels(path[0], clients, sentence)
    return pack_fast(master_client(sentinels, path[0], tls, {"db": database, **options}))


async def close(client: Client) -> None:
    """Close every connection, those to the Sentinels and those of scripts too, which redis-py's client knows not of."""
    if isinstance(client, Cluster):
        await client.close_nodes()
    await client.aclose()
    sentinels: Sentinels | None = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    if sentinels is not None:
        await sentinels.aclose()


#: What a server says when it cannot take the work now, and what that means for the person who looks after it.
_TROUBLES = (
    ("OOM", "Redis is at its maxmemory: give it more memory; what is due is still delivered, nothing new is parked"),
    ("MISCONF", "Redis cannot write to its disk: make room there"),
    ("NOREPLICAS", "Redis has fewer replicas than its min-replicas-to-write asks for"),
    ("READONLY", "Redis is a replica now: a failover is under way"),
    ("LOADING", "Redis is loading its data"),
    ("BUSY", "Redis is busy with a script"),
    ("CLUSTERDOWN", "the Redis Cluster is down"),
    ("MASTERDOWN", "Redis has lost its master"),
    ("TRYAGAIN", "the Redis Cluster is moving a slot"),
    ("NOAUTH", "Redis wants a password: set redis.password"),
    ("WRONGPASS", "Redis refuses the user or the password: see redis.username and redis.password"),
    ("NOPERM", "the Redis user may not do what postdate needs"),
    ("MOVED", "Redis is a node of a cluster: write redis+cluster:// in place of redis:// in redis.url"),
)


#: What else is said at the door, by redis-py or by the server: a part of it, and what that means.
_AT_THE_DOOR = (
    ("without any password configured", "Redis has no password, and one is set: leave out redis.password"),
    ("invalid username-password", "Redis refuses the user or the password: see redis.username and redis.password"),
    ("unknown command 'SENTINEL'", "that is no Sentinel: see redis.url"),
    ("CERTIFICATE_REQUIRED", "Redis refuses clients without a certificate that it trusts: set redis.cert_file"),
    ("WRONG_VERSION_NUMBER", "Redis does not speak TLS there: see redis.url, rediss:// is with TLS"),
    (
        "SELECT is not allowed in cluster mode",
        "Redis is a node of a cluster, which has no databases with numbers: write redis+cluster:// and no number in "
        "redis.url",
    ),
    (
        "running in protected mode",
        "Redis is in protected mode, and takes connections from its own machine alone: give it a password, and "
        "redis.password too",
    ),
    ("max number of clients reached", "Redis has as many connections as its maxclients allows: raise that"),
    ("Protocol error, got", "what answers there is no Redis: see redis.url"),
)
#: How errors of redis-py begin, but for the last, which is ours (``_greet``).
_NO_CLUSTER = "cluster support disabled"
_NO_DATABASE = "DB index is out of range"
_HUNG_UP = (
    "Connection closed by server",
    "Error while reading from",
    "Error while writing to",
    "Error 104 while",
    "Error 32 while",
)
_AT_ONCE = "Hung up at once:"
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.*?)\.? \(_ssl")
_TLS = re.compile(r"\[(X509|SSL)[^\]]*\] (.*?) \(_ssl")
_PLACE = re.compile(r"Error (-?\d+) connecting to (\S+)\. (.*?)\.?$", re.DOTALL)


def sentence(error: BaseException) -> str:
    """One sentence for a person about an error of redis-py or of the network."""
    if isinstance(error, NoMaster | MasterAway):
        return str(error)
    if isinstance(error, RedisClusterException):
        return _of_cluster(error)
    text = str(error) or type(error).__name__
    for part, meaning in _AT_THE_DOOR:
        if part in text:
            return meaning
    code = getattr(error, "status_code", None)  # redis-py takes the codes that it knows out of the text
    for word, meaning in _TROUBLES:
        if code == word or text.startswith(word) or f" {word} " in f" {text} ":
            return f"{meaning} ({text})" if word in ("NOPERM", "MISCONF") else meaning
    return _of_server(text) or _of_link(text)


def _of_server(text: str) -> str:
    """Which part of the URL it has not got; "" if that is not what it is about."""
    if text.startswith(_NO_DATABASE):
        _, _, number = text.partition(": ")
        which = f"no database {number}" if number else "not so many databases"
        return (
            f"Redis has {which}: the number at the end of redis.url is too high, or `databases` in redis.conf too low"
        )
    return ""


def _of_link(text: str) -> str:
    """About a connection that there is not."""
    if found := _UNTRUSTED.search(text):
        return (
            f"Redis shows a certificate that is not trusted ({found[1]}): see redis.ca_file, and the host in redis.url"
        )
    if found := re.match(rf"{_AT_ONCE} (\S+), (with|without) TLS", text):
        want = "TLS: rediss:// in redis.url" if found[2] == "without" else "a certificate: redis.cert_file"
        return f"{AWAY} at {found[1]} (it hangs up at once, and may want {want})"
    if found := re.fullmatch(r"Error connecting to (\S+?)\.", text):
        return f"{AWAY} at {found[1]} (it hangs up at once, and may not speak TLS there: redis:// in redis.url)"
    if found := _PLACE.search(text):
        if tls := _TLS.search(text):
            of_file = tls[1] == "X509" or tls[2] == "PEM lib"
            what = "redis.ca_file, cert_file or key_file cannot be used" if of_file else f"no TLS with {found[2]}"
            return f"{what} ({tls[2]})"
        number = int(found[1])
        reason = os.strerror(number) if number > 0 else found[3]
        return f"{AWAY} at {found[2]} ({reason}): start it, or set redis.url"
    if text.startswith("Timeout connecting"):
        return f"{AWAY} (no connection in redis.connect_timeout; or TLS on one side only): see redis.url"
    return f"{AWAY} ({text})"


def _of_cluster(error: RedisClusterException) -> str:
    """redis-py takes every refusal of its first question for "no cluster": what was said stands behind the error."""
    behind: BaseException | None = error
    while isinstance(behind, RedisClusterException):
        behind = behind.__cause__ or behind.__context__
    if "Cluster mode is not enabled" in str(error) and _NO_CLUSTER in str(behind or _NO_CLUSTER):
        return "Redis is no cluster: write redis:// in place of redis+cluster:// in redis.url"
    said = sentence(behind or Exception(str(error).rpartition(": ")[2]))
    if not said.startswith(AWAY):
        return said
    reason = said[said.find("(") + 1 : said.rfind(")")]
    return f"no node of the Redis Cluster answers ({reason}): start them, or set redis.url"


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns every error of redis-py and of the network into ``StoreUnavailable``."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
        raise StoreUnavailable(sentence(error)) from error
    except RuntimeError as error:
        # uvloop's word for a connection that went between redis-py's last look at it and the write.
        if "handler is closed" not in str(error):
            raise
        raise StoreUnavailable(sentence(error)) from error
