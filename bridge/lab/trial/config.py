"""The settings of a bridge for one run: those of the user, with routes and keys that are nobody else's."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from bridge.settings import Route, Settings
from bridge.settings.model import BrokerKind
from bridge.settings.names import leaves, rule_of
from bridge.settings.values import ListOf, Number, Whole

#: The one route of such a bridge.
ROUTE = "trial"


@dataclass(frozen=True)
class Names:
    """What the run calls its own on the broker and in the store; all of it is removed at the end.

    Producers publish to ``front``, the route delivers to ``target``, consumers read ``queue``, which is the target
    where a broker has no queues. ``prefix`` begins the keys, and names the consumer group where there is one.
    """

    front: str
    target: str
    queue: str
    intake: str
    prefix: str


def new_names(purpose: str, broker: BrokerKind = "rabbitmq") -> Names:
    """Names that no other run has, so that two may go on at once and neither finds what a killed one left."""
    base = f"postdate.{purpose}.{secrets.token_hex(3)}"
    if broker == "kafka":
        return Names(f"{base}.delay", base, base, "", base)
    return Names(f"{base}.delay", base, f"{base}.queue", f"{base}.intake", base)


def trial_settings(
    settings: Settings, names: Names, mode: str = "redis", broker: BrokerKind = "rabbitmq", **other: dict[str, Any]
) -> Settings:
    """The user's settings with the run's names and one route of that mode; ``other`` changes single settings:
    ``bridge={"workers": 1}``."""
    route = Route.model_validate(
        {
            "broker": broker,
            "intercept": names.front,
            "deliver_to": names.target,
            "queue": names.intake,
            "mode": mode,
        }
    )
    own: dict[str, dict[str, Any]] = {
        "kafka": {"group": names.prefix},
        "redis": {"key_prefix": names.prefix},
        "bridge": {"instance": "", "setup": True},
    }
    for section, values in other.items():
        own[section] = {**own.get(section, {}), **values}
    changed = {section: getattr(settings, section).model_copy(update=values) for section, values in own.items()}
    return settings.model_copy(update={**changed, "routes": {ROUTE: route}})


def as_toml(settings: Settings) -> str:
    """All settings as a file that ``load`` reads back to the same. Secrets stand in it in the clear."""
    tables: dict[str, list[str]] = {}
    for path, field in leaves(settings.routes):
        value: Any = settings
        for name in path:
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        tables.setdefault(".".join(path[:-1]), []).append(f"{path[-1]} = {_write(field, value)}")
    return "\n".join(f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items())


def _write(field: FieldInfo, value: Any) -> str:
    rule = rule_of(field)
    if isinstance(value, SecretStr):
        return _quoted(value.get_secret_value())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(rule, ListOf):
        return f"[{', '.join(_quoted(rule.item.write(one)) for one in value)}]"
    if isinstance(rule, Whole | Number):
        return str(value)
    return _quoted(rule.write(value) if rule else str(value))


def _quoted(text: str) -> str:
    # A JSON text is a TOML text, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
