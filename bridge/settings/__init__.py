"""The settings: read from flags, environment, secret files and one TOML file, checked once, then frozen.

Durations are whole milliseconds, sizes are whole bytes. URLs and passwords are ``SecretStr``, so that no ``repr`` and
no traceback shows them. ``config.example.toml`` explains each setting.

To add a setting: a field in ``model.py`` with a rule of ``values.py`` or ``urls.py``, and its explanation in
``config.example.toml``. What it must agree with goes into ``conflicts.py``.
"""

from bridge.settings.model import Kafka, Log, Partitioner, RabbitMQ, Redis, Route, Settings, Webhook
from bridge.settings.process_plan import ProcessPlan, plan
from bridge.settings.reading import load, require_routes, settings_from, settings_of_file, settings_with_routes
from bridge.settings.urls import mask_url
from bridge.settings.warnings import exposed_files, forgotten_broker, open_routes

__all__ = [
    "Kafka",
    "Log",
    "Partitioner",
    "ProcessPlan",
    "RabbitMQ",
    "Redis",
    "Route",
    "Settings",
    "Webhook",
    "exposed_files",
    "forgotten_broker",
    "load",
    "mask_url",
    "open_routes",
    "plan",
    "require_routes",
    "settings_from",
    "settings_of_file",
    "settings_with_routes",
]
