"""Files with passwords that every user of the machine can read."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path as FilePath
from urllib.parse import unquote, urlsplit

from bridge.settings.describe import value_at
from bridge.settings.model import Settings
from bridge.settings.names import dotted, is_secret, leaves

#: RabbitMQ's own default, which works from its own machine alone and is no secret.
_PUBLIC = "guest"
#: Docker and Podman put secrets here that everybody can read, in a file system that only their container has.
_CONTAINERS = "/run/secrets/"


def exposed_files(settings: Settings) -> Iterator[str]:
    """A sentence for each file of the settings that holds a password and that every user can read."""
    for file in dict.fromkeys(_files_with_passwords(settings)):
        try:
            mode = FilePath(file).stat().st_mode
        except OSError:
            continue
        if mode & stat.S_IROTH and not file.startswith(_CONTAINERS):
            yield f"every user of this machine can read the password in {file}. Run: chmod o-r {file}"


def _files_with_passwords(settings: Settings) -> Iterator[str]:
    """The settings file and the secret files, as often as one holds a password that counts."""
    for path, field in leaves():
        where = settings._sources.get(dotted(path), "")
        if not is_secret(field) or not _holds_password(value_at(settings, path).get_secret_value()):
            continue
        if where == settings.file:
            yield where
        elif where.startswith("file "):
            yield where.removeprefix("file ")


def _holds_password(value: str) -> bool:
    """Whether it is a password, or a URL with one."""
    if "://" not in value:
        return bool(value)
    parts = urlsplit(value)
    return unquote(parts.password or _PUBLIC) != _PUBLIC or "password=" in parts.query
