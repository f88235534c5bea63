"""URLs of the store and the broker: is this one that a client library will understand as it was meant?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.settings.masking import mask_url
from bridge.settings.nearest import did_you_mean
from bridge.settings.rules import Rule, Secret, read_text, wrong

REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
AMQP_SCHEMES = ("amqp", "amqps")

_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+)(?::(?P<port>\d{1,5}))?")
#: The name of a master, and perhaps a database.
_SENTINEL_PATH = re.compile(r"[^/]+(?:/\d*)?", re.ASCII)
_NO_MASTER_NAME = (
    "must end in /NAME, the master that the Sentinels know, or in /NAME/NUMBER with a database: "
    "redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster"
)
#: A second URL behind the first, where only a host belongs.
_ANOTHER_URL = re.compile(r",\s*amqps?://")
_ESCAPES = 'write "/" as %2F, "@" as %40, ":" as %3A, "#" as %23 and "?" as %3F inside user and password'


@dataclass(frozen=True)
class Url(Secret):
    """A URL with one of ``schemes``. It may hold a password, so it is shown masked and never quoted in an error."""

    schemes: Sequence[str]
    check: Callable[[str, str], str | None]

    def read(self, value: Any) -> str:
        url = super().read(value)
        scheme, separator, rest = url.partition("://")
        if not separator:
            raise wrong(f"must be a URL that begins with {self._choices()}")
        if scheme not in self.schemes:
            raise wrong(f"must begin with {self._choices()}{did_you_mean(scheme, self.schemes)}")
        if text := self.check(scheme, rest):
            raise wrong(text)
        return url

    def _choices(self) -> str:
        return ", ".join(f"{scheme}://" for scheme in self.schemes)

    def write(self, value: Any) -> str:
        return mask_url(value.get_secret_value())


@dataclass(frozen=True)
class WebAddress(Rule):
    """An http:// or https:// URL without a user, "off", or "" for the usual place."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        if text in ("", "off"):
            return text
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in ("http", "https"):
            raise wrong('must begin with http:// or https://, or be "off"')
        if "@" in rest:
            raise wrong("must not name a user: the one of rabbitmq.url is used")
        if "?" in rest or "#" in rest or not _is_host(rest.partition("/")[0]):
            raise wrong('must be a URL with a host, such as "https://rabbit-1:15671"')
        return text


@dataclass(frozen=True)
class Servers(Rule):
    """Hosts with ports, commas between."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        hosts = [host.strip() for host in text.split(",")]
        if "://" in text:
            raise wrong('must be hosts without a scheme, such as "kafka-1:9092,kafka-2:9092"')
        if not all(_is_host(host) and _HOST.fullmatch(host)["port"] for host in hosts):  # type: ignore[index]
            raise wrong('must be hosts with their ports and commas between, such as "kafka-1:9092,kafka-2:9092"')
        return ",".join(hosts)


def check_redis(scheme: str, rest: str) -> str | None:
    """Check what follows ``redis://``; several hosts with commas between are for sentinels and clusters."""
    wrong = _check_rest(rest, several=scheme.endswith(("sentinel", "cluster")))
    path = rest.rpartition("@")[2].partition("?")[0].partition("/")[2]
    if wrong or scheme.endswith("cluster"):
        return wrong
    if scheme.endswith("sentinel"):
        return None if _SENTINEL_PATH.fullmatch(path) else _NO_MASTER_NAME
    return None if re.fullmatch(r"\d*", path, re.ASCII) else "must end in /NUMBER, the database (or in nothing)"


def check_amqp(scheme: str, rest: str) -> str | None:
    """Check what follows ``amqp://``. Options in it would be overridden, or unknown to the client library."""
    if _ANOTHER_URL.search(rest):
        return f'must name the scheme once, and the hosts with commas between: "{scheme}://user:password@a:5672,b:5672/%2F"'
    if "?" in rest.rpartition("@")[2]:
        return 'must not have options (what follows "?"): see rabbitmq.heartbeat, rabbitmq.ca_file and so on'
    return _check_rest(rest, several=True)


def _check_rest(rest: str, *, several: bool) -> str | None:
    if any(not sign.isprintable() or sign.isspace() for sign in rest):
        return "must not contain spaces or line breaks"
    authority, _, tail = rest.replace("?", "/").partition("/")
    # An "@" after the first "/" or "?" means that the password was not escaped: the host would be a wrong one.
    if "#" in rest or "@" in tail or authority.count("@") > 1:
        return f"cannot be read: {_ESCAPES}"
    hosts = authority.rpartition("@")[2].split(",")
    if len(hosts) > 1 and not several:
        return "must name one host"
    return None if all(_is_host(host) for host in hosts) else "must name a host, with a port from 1 to 65535 or none"


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and (found["port"] is None or 1 <= int(found["port"]) <= 65535)
