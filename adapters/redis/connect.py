"""Makes a client from a URL: standalone, Sentinel or Cluster.

redis-py repeats a command that timed out, ten times by default. Every script here is safe to repeat. But a repeat
inside the client would hide an outage for minutes, so the client repeats nothing and the loops decide.
RESP2 saves a round trip for each connection. It also avoids RESP3's maintenance notices, which leave stale connections
in the pool of redis-py 8.1 (redis-py issue 4252).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import ResponseError

from adapters.redis.cluster import Cluster
from adapters.redis.errors import named
from adapters.redis.link import check_seams, renew_certificates
from adapters.redis.node import NodeClient
from adapters.redis.sentinel import LOOK_S, FollowingConnection, Sentinels, ask_role, master_client
from bridge.core.errors import SettingsError
from bridge.settings import Redis as RedisSettings

Client = NodeClient | Cluster


def connect(settings: RedisSettings) -> Client:
    """Return a client, not connected yet. Raises ``SettingsError`` for a URL that cannot name a server, and
    ``PostdateError`` for a redis-py that does not fit."""
    check_seams()
    url = urlsplit(settings.url.get_secret_value())
    options = _options(settings, url.scheme.startswith("rediss"))
    if url.scheme.endswith("+cluster"):
        return _cluster(url.netloc.rpartition("@")[2], options)
    path = [part for part in url.path.split("/") if part]
    if url.scheme.endswith("+sentinel"):
        return _sentinel(url.netloc.rpartition("@")[2], path, options, SentinelLogin(settings))
    database = path[0] if path else "0"
    if not database.isdecimal():
        raise SettingsError(f"redis.url: the database must be a number, not {database!r}")
    return NodeClient(host=url.hostname or "127.0.0.1", port=url.port or 6379, db=int(database), **options)


class Login(CredentialProvider):
    """User and password of a connection, read again for each, so that a rotated password needs no restart."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings

    async def get_credentials_async(self) -> Any:
        """Return user and password, or the password alone, or nothing."""
        return self._credentials(urlsplit(self._settings.url.get_secret_value()))

    def _credentials(self, url: SplitResult) -> tuple[str, ...]:
        user = self._settings.username or unquote(url.username or "")
        password = self._settings.password.get_secret_value() or unquote(url.password or "")
        return (user, password) if user else (password,) if password else ()


class SentinelLogin(Login):
    """The same for the Sentinels, which have a password of their own."""

    def _credentials(self, url: SplitResult) -> tuple[str, ...]:
        return tuple(parse_qs(url.query).get("sentinel_password", [])[:1])


def _options(settings: RedisSettings, tls: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": settings.timeout / 1000,
        "socket_connect_timeout": settings.connect_timeout / 1000,
        "socket_keepalive": True,
        "client_name": "postdate",
        "redis_connect_func": _greet,
        "credential_provider": Login(settings),
    }
    if tls:
        options["ssl"] = True
        options["ssl_ca_certs"] = settings.ca_file or None
        options["ssl_certfile"] = settings.cert_file or None
        options["ssl_keyfile"] = settings.key_file or None
    return options


async def _greet(connection: Any) -> None:
    """Greet the server as redis-py does, and name in its errors what redis-py leaves out."""
    try:
        await connection.on_connect()
        if isinstance(connection, FollowingConnection):
            await ask_role(connection)
    except (ResponseError, LinkError) as error:
        tls = isinstance(connection, SSLConnection)
        better = named(error, connection, tls, _place(connection) in _greeted)
        if better is error:
            raise
        raise better from error
    _greeted.add(_place(connection))
    renew_certificates(connection)


#: The servers that this process has greeted, with TLS or without, and with which client certificate. Where one of them
#: hangs up later, the settings are not the reason.
_greeted: set[tuple[str, int, bool, str | None]] = set()


def _place(connection: Any) -> tuple[str, int, bool, str | None]:
    tls = isinstance(connection, SSLConnection)
    return connection.host, connection.port, tls, connection.certfile if tls else None


def _hosts(netloc: str, port: int) -> list[tuple[str, int]]:
    hosts = []
    for part in netloc.split(","):
        split = urlsplit(f"//{part}")
        hosts.append((split.hostname or "127.0.0.1", split.port or port))
    return hosts


def _cluster(netloc: str, options: dict[str, Any]) -> Cluster:
    del options["retry"], options["redis_connect_func"]  # redis-py's cluster client has its own
    return Cluster(
        options["socket_timeout"],
        startup_nodes=[ClusterNode(host, port) for host, port in _hosts(netloc, 6379)],
        retry=Retry(NoBackoff(), 0),
        **options,
    )


def _sentinel(netloc: str, path: list[str], options: dict[str, Any], login: SentinelLogin) -> NodeClient:
    """Return a client that follows a master. The Sentinels get a password too, and so the same TLS settings."""
    if not path:
        raise SettingsError(
            "redis.url: redis+sentinel:// needs a master name after the slash: redis+sentinel://host:26379/NAME"
        )
    tls = bool(options.pop("ssl", False))
    secure = {key: value for key, value in options.items() if key.startswith("ssl_")} | {"ssl": tls}
    plain = {key: options[key] for key in ("protocol", "retry", "socket_connect_timeout", "redis_connect_func")}
    plain["credential_provider"] = login
    plain["socket_timeout"] = min(options["socket_timeout"], LOOK_S)
    clients = [Redis(host=host, port=port, **plain, **secure) for host, port in _hosts(netloc, 26379)]
    database = int(path[1]) if len(path) > 1 and path[1].isdecimal() else 0
    sentinels = Sentinels(path[0], clients)
    return master_client(sentinels, path[0], tls, {"db": database, **options})


async def close(client: Client) -> None:
    """Close every connection, also those that redis-py's client does not know: to Sentinels, and of scripts."""
    await client.close_links()
    await client.aclose()
    sentinels: Sentinels | None = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    if sentinels is not None:
        await sentinels.aclose()
