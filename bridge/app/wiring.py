"""The settings of a command: from its options, the environment and the settings file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bridge.settings import Settings, load, require_routes

_NONE: Mapping[str, object] = MappingProxyType({})


def settings_from(config: Path | None, overrides: Mapping[str, object] = _NONE) -> Settings:
    """Return the settings. Raises ``SettingsError``."""
    return load(config, os.environ, overrides)


def settings_with_routes(config: Path | None, overrides: Mapping[str, object] = _NONE) -> Settings:
    """Return the settings, which have at least one route. Raises ``SettingsError``."""
    settings = settings_from(config, overrides)
    require_routes(settings)
    return settings


def settings_of_file(file: Path) -> Settings:
    """Return what one file says, without the environment. Raises ``SettingsError``."""
    return load(file, {})
