"""What other protocols than AMQP 0-9-1 do to delay headers, as far as the management API tells. Blocking."""

from __future__ import annotations

from collections.abc import Iterable

from adapters.rabbitmq.management import reach
from bridge.settings import Settings

_PLUGIN = "rabbitmq_amqp1_0"


def judge_protocols(settings: Settings) -> list[tuple[str, str]]:
    """Return a sentence for each route that misses the headers of AMQP 1.0 messages. Raises ``BrokerUnavailable`` where
    no API answers. Only users with the tag `monitoring` may ask for plugins; for others nothing is known."""
    with reach(settings.rabbitmq) as api:
        plugins = [plugin for node in api.nodes() or () for plugin in node.get("enabled_plugins") or ()]
        return packed_headers(settings, api.version, plugins)


def packed_headers(settings: Settings, version: str, plugins: Iterable[str]) -> list[tuple[str, str]]:
    """The same, for a broker of this version with these plugins. Pure. RabbitMQ 4 makes a header of each property."""
    if not version.startswith("3.") or _PLUGIN not in plugins:
        return []
    text = (
        f"RabbitMQ {version} with plugin {_PLUGIN} packs the delay headers of AMQP 1.0 messages, and delivers such "
        'messages at once. Publish them by another protocol, use deliver_to = "", or upgrade to RabbitMQ 4'
    )
    routes = settings.routes
    return [(name, text) for name in settings.routes_of("rabbitmq") if routes[name].target and not routes[name].retries]
