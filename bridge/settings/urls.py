"""URLs and host lists: the rules for them, and how a URL is shown without its password."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.settings.mistakes import did_you_mean
from bridge.settings.values import Rule, Secret, read_text, wrong

REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
AMQP_SCHEMES = ("amqp", "amqps")
DATABASE_SCHEMES = ("sqlite", "postgresql", "mysql", "mariadb")

DOTS = "***"
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+)(?::(?P<port>\d{1,5}))?")
#: The master's name, optionally followed by a database number.
_SENTINEL_PATH = re.compile(r"[^/]+(?:/\d*)?", re.ASCII)
_NO_MASTER_NAME = (
    "must end in the name of the Sentinels' master, optionally with a database number: "
    "redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0"
)
#: A second URL after the first one, where only another host belongs.
_ANOTHER_URL = re.compile(r",\s*amqps?://")
_ESCAPES = 'Write "/" as %2F, "@" as %40, ":" as %3A, "#" as %23 and "?" as %3F in the user and the password.'


@dataclass(frozen=True)
class Url(Secret):
    """A URL with one of ``schemes``. It may contain a password, so no error quotes it."""

    schemes: Sequence[str]
    check: Callable[[str, str], None]

    def judge(self, text: str) -> None:
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise wrong(f"must be a URL that begins with {self._choices()}")
        if scheme not in self.schemes:
            raise wrong(f"must begin with {self._choices()}", did_you_mean(scheme, self.schemes))
        self.check(scheme, rest)

    def _choices(self) -> str:
        return ", ".join(f"{scheme}://" for scheme in self.schemes)


@dataclass(frozen=True)
class DatabaseUrl(Secret):
    """A URL of a database, or "". It may contain a password, so no error quotes it."""

    def judge(self, text: str) -> None:
        scheme, separator, rest = text.partition("://")
        if not text:
            return
        if not separator or scheme not in DATABASE_SCHEMES:
            raise wrong(f"must begin with {', '.join(f'{known}://' for known in DATABASE_SCHEMES)}")
        if scheme == "sqlite":
            if not rest.startswith("//"):
                raise wrong("must name a file by its whole path, such as sqlite:////var/lib/postdate/journal.db")
            return
        _check_rest(rest, several=False)
        if not rest.partition("?")[0].partition("/")[2]:
            raise wrong(f"must end in the name of a database, such as {scheme}://postdate@db-1/postdate")


@dataclass(frozen=True)
class WebAddress(Rule):
    """An http:// or https:// URL without a user, or "off", or "" for the default address."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        if text in ("", "off"):
            return text
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in ("http", "https"):
            raise wrong('must begin with http:// or https://, or be "off"')
        if "@" in rest:
            raise wrong("must not contain a user: postdate logs in as the user of rabbitmq.url")
        if "?" in rest or "#" in rest or not _is_host(rest.partition("/")[0]):
            raise wrong('must be a URL with a host, such as "https://rabbit-1:15671"')
        return text


@dataclass(frozen=True)
class TokenServer(Rule):
    """The https:// URL of an OAuth server, or "". On this machine it may be http://."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        scheme, separator, rest = text.partition("://")
        host = re.split(r"[/?#]", rest, maxsplit=1)[0]
        if not text:
            return text
        if not separator or scheme not in ("http", "https") or "@" in rest or not _is_host(host):
            raise wrong('must be a URL without a user, such as "https://login.example.com/oauth2/token"')
        if scheme == "http" and not is_loopback(host if ":" in host else f"{host}:80"):
            raise wrong("must begin with https://: the client's secret would cross the network in clear text")
        return text


@dataclass(frozen=True)
class Servers(Rule):
    """Hosts with ports, separated by commas."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        hosts = [host.strip() for host in text.split(",")]
        if "://" in text:
            raise wrong('must be hosts without a scheme, such as "kafka-1:9092,kafka-2:9092"')
        if not all(_is_host(host) and _HOST.fullmatch(host)["port"] for host in hosts):  # type: ignore[index]
            raise wrong('must be hosts with ports, separated by commas, such as "kafka-1:9092,kafka-2:9092"')
        return ",".join(hosts)


@dataclass(frozen=True)
class Listen(Rule):
    """An address to listen on: host and port. Port 0 lets the system choose one. "" is none, if ``optional``."""

    optional: bool = False

    def read(self, value: Any) -> str:
        text = read_text(value).strip()
        if self.optional and not text:
            return ""
        host, _, port = text.rpartition(":")
        whole = re.fullmatch(r"\d{1,5}", port, re.ASCII) is not None and int(port) <= 65535
        if not whole or not re.fullmatch(r"\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+", host, re.ASCII):
            raise wrong('must be a host and a port, such as "127.0.0.1:8480" or "[::1]:8480"')
        return text


def is_loopback(listen: str) -> bool:
    """Return whether only this machine can reach an address to listen on. Pure; a name counts only as "localhost"."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Hook(Secret):
    """An http:// or https:// URL, or "". Its path often holds a secret, so it is never shown."""

    def judge(self, text: str) -> None:
        if not text:
            return
        scheme, separator, rest = text.partition("://")
        host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
        if not separator or scheme not in ("http", "https") or not _is_host(host):
            raise wrong('must be an http:// or https:// URL with a host, such as "https://hooks.example/..."')


def check_redis(scheme: str, rest: str) -> None:
    """Check what follows ``redis://``. Only Sentinel and Cluster URLs may name several hosts."""
    _check_rest(rest, several=scheme.endswith(("sentinel", "cluster")))
    path = rest.rpartition("@")[2].partition("?")[0].partition("/")[2]
    if scheme.endswith("sentinel"):
        if not _SENTINEL_PATH.fullmatch(path):
            raise wrong(_NO_MASTER_NAME)
    elif not scheme.endswith("cluster") and not re.fullmatch(r"\d*", path, re.ASCII):
        raise wrong("must end in /NUMBER, the database, or have no path")


def check_amqp(scheme: str, rest: str) -> None:
    """Check what follows ``amqp://``. Options are refused: settings override them, or pika does not know them."""
    if _ANOTHER_URL.search(rest):
        raise wrong(f'must name the scheme once, then all hosts: "{scheme}://user:password@a:5672,b:5672/%2F"')
    if "?" in rest.rpartition("@")[2]:
        raise wrong('must not have options after "?": use the settings, such as rabbitmq.heartbeat or rabbitmq.ca_file')
    _check_rest(rest, several=True)


def _check_rest(rest: str, *, several: bool) -> None:
    if any(not sign.isprintable() or sign.isspace() for sign in rest):
        raise wrong("must not contain spaces or line breaks")
    authority, _, tail = rest.replace("?", "/").partition("/")
    # An "@" after the first "/" or "?" comes from a password that is not escaped: the host would be a wrong one.
    if "#" in rest or "@" in tail or authority.count("@") > 1:
        raise wrong("cannot be read as a URL", _ESCAPES)
    hosts = authority.rpartition("@")[2].split(",")
    if len(hosts) > 1 and not several:
        raise wrong("must name one host")
    if not all(map(_is_host, hosts)):
        raise wrong("must name a host, optionally with a port from 1 to 65535")


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found["port"] is None or 1 <= int(found["port"]) <= 65535)


def mask_url(url: str) -> str:
    """Return ``url`` for display: user and hosts stay, the password and every query value become dots.

    Made for URLs that ``load`` accepted. Everything before the last ``@`` counts as user and password, so that a
    password with an unescaped ``/`` or ``@`` is hidden too.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DOTS
    user, at, place = rest.rpartition("@")
    place, question, query = place.partition("?")
    return f"{scheme}://{_mask_user(user)}{at}{place}{question}{_mask_query(query)}"


def _mask_user(user: str) -> str:
    """``user:password`` keeps the user. A single word is hidden: many people write only their password there."""
    if not user:
        return ""
    name, colon, _ = user.partition(":")
    return f"{name}:{DOTS}" if colon else DOTS


def _mask_query(query: str) -> str:
    """Hide all values: redis-py and pika read passwords from the query, too."""
    parts = (part.partition("=") for part in query.split("&") if part)
    return "&".join(f"{name}={DOTS}" if equals else DOTS for name, equals, _ in parts)
