"""Settings that are allowed, but dangerous or probably not what was meant."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path as FilePath
from urllib.parse import unquote, urlsplit

from bridge.settings.model import Settings
from bridge.settings.names import dotted, is_secret, leaves_of

#: RabbitMQ's default password. It works only from the broker's own machine and is no secret.
_PUBLIC = "guest"
#: Docker and Podman mount secrets here, readable for everyone, in a file system that only the container has.
_CONTAINERS = "/run/secrets/"


def exposed_files(settings: Settings) -> Iterator[str]:
    """A warning for each file that contains a password and that every user of the machine can read."""
    for file in dict.fromkeys(_files_with_passwords(settings)):
        try:
            mode = FilePath(file).stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IROTH and not file.startswith(_CONTAINERS):
            yield f"every user of this machine can read the secrets in {file}. Run: chmod o-r {file}"


def _files_with_passwords(settings: Settings) -> Iterator[str]:
    """The settings file and the secret files, once for each password that is in use."""
    for path, field, value in leaves_of(settings):
        source = settings.origin.sources.get(dotted(path), "")
        if not is_secret(field) or not _holds_password(value.get_secret_value()):
            continue
        if source == settings.file:
            yield source
        elif source.startswith("file "):
            yield source.removeprefix("file ")


def _holds_password(value: str) -> bool:
    """Whether a value is a password, or a URL with one."""
    if "://" not in value:
        return bool(value)
    parts = urlsplit(value)
    return unquote(parts.password or _PUBLIC) != _PUBLIC or "password=" in parts.query


def forgotten_broker(settings: Settings) -> str:
    """A warning if [kafka] is set but no route uses Kafka; else "". A route is of RabbitMQ by default."""
    sources = settings.origin.sources
    if not any(name.startswith("kafka.") for name in sources) or settings.routes_of("kafka"):
        return ""
    routes = [name for name in settings.routes if f"routes.{name}.broker" not in sources]
    if not routes:
        return ""
    return f'[kafka] is set, but no route uses Kafka. Set broker = "kafka" in [routes.{routes[0]}], or remove [kafka]'


def open_routes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Routes that let producers write to any queue through postdate, each with a warning."""
    for name, route in settings.routes.items():
        if route.broker == "rabbitmq" and not (route.retries or route.target or route.allow_to):
            yield (
                name,
                f"every producer of exchange '{route.intercept}' can write to any queue, because deliver_to is the "
                f"default exchange. List the queues that producers may name in routes.{name}.allow_to",
            )
