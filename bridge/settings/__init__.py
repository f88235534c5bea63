"""The settings: read from flags, environment, secret files and one TOML file, checked once, frozen.

Durations are stored as whole milliseconds, sizes as whole bytes; URLs and passwords as ``SecretStr``, so that no
``repr`` and no traceback shows them. ``config.example.toml`` says what each setting means.
"""

from bridge.settings.describe import describe
from bridge.settings.exposed import exposed_files
from bridge.settings.load import load, require_routes
from bridge.settings.masking import mask_url
from bridge.settings.model import (
    Bridge,
    Dispatch,
    Headers,
    Kafka,
    Levels,
    Limits,
    Log,
    RabbitMQ,
    Redis,
    Retry,
    Route,
    Settings,
)
from bridge.settings.trust import open_routes
from bridge.settings.unused import forgotten_broker

__all__ = [
    "Bridge",
    "Dispatch",
    "Headers",
    "Kafka",
    "Levels",
    "Limits",
    "Log",
    "RabbitMQ",
    "Redis",
    "Retry",
    "Route",
    "Settings",
    "describe",
    "exposed_files",
    "forgotten_broker",
    "load",
    "mask_url",
    "open_routes",
    "require_routes",
]
