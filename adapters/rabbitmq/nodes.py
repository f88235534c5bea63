"""What the management API tells of a RabbitMQ that concerns postdate, for `postdate doctor`. Blocking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adapters.rabbitmq.management import ManagementApi, reach
from bridge.core.errors import BrokerUnavailable
from bridge.desk.severity import CheckResult, fail, ok, warn
from bridge.settings import Settings

#: The exchange type of rabbitmq-delayed-message-exchange, which was archived in January 2026.
PLUGIN_TYPE = "x-delayed-message"
#: From this part of its file descriptors on a node refuses connections soon.
_FILES_HIGH = 0.9


def diagnose(settings: Settings) -> list[CheckResult]:
    """Return version, alarms and leftovers of the delayed-message plugin, as far as the management API answers."""
    if settings.rabbitmq.management_url == "off":
        return [ok("RabbitMQ", "its management API is not asked (rabbitmq.management_url is off)")]
    try:
        with reach(settings.rabbitmq) as api:
            fronts = frozenset(settings.routes[name].intercept for name in settings.routes_of("rabbitmq"))
            return [ok("RabbitMQ", f"version {api.version}"), *_alarms(api), *_plugin(api, fronts)]
    except BrokerUnavailable as error:
        text = f"alarms, policies and leftovers of the delayed-message plugin are not known: {error}"
        advice = 'Enable it with `rabbitmq-plugins enable rabbitmq_management`, or set rabbitmq.management_url = "off"'
        return [warn("RabbitMQ", text, advice) if settings.rabbitmq.management_url else ok("RabbitMQ", text, advice)]


def _alarms(api: ManagementApi) -> list[CheckResult]:
    nodes = api.nodes()
    if nodes is None:
        return []
    found = [alarm for node in nodes for alarm in alarms_of(node)]
    return found or [ok("RabbitMQ", f"nodes without an alarm: {len(nodes)}")]


def alarms_of(node: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Yield a warning for each alarm of a node, as the API describes it. Pure."""
    subject = f"node {node.get('name')}"
    if node.get("running") is False:
        yield warn(subject, "it is not running", "Start it")
    if node.get("mem_alarm"):
        text = "memory alarm: RabbitMQ blocks every publisher, so nothing is delivered"
        yield warn(subject, text, "Give the node more memory, or let consumers empty its queues")
    if node.get("disk_free_alarm"):
        text = "disk alarm: RabbitMQ blocks every publisher, so nothing is delivered"
        yield warn(subject, text, "Free disk space on the node")
    used, most = node.get("fd_used") or 0, node.get("fd_total") or 0
    if most and used > _FILES_HIGH * most:
        yield warn(subject, f"open files: {used} of {most}", "Raise the node's limit of open files (ulimit -n)")


def _plugin(api: ManagementApi, fronts: frozenset[str]) -> Iterator[CheckResult]:
    """Look for exchanges of the plugin, and for those that `postdate migrate plugin` has replaced."""
    exchanges = api.listed("exchanges")
    left = [exchange for exchange in exchanges if exchange.get("type") == PLUGIN_TYPE]
    yield from map(plugin_exchange, left)
    if not left:
        yield ok("RabbitMQ", f"virtual host '{api.vhost}' has no exchange of the delayed-message plugin")
    for exchange in exchanges:
        if (exchange.get("arguments") or {}).get("alternate-exchange") in fronts:
            yield from shortcuts(exchange, api.bindings_of(exchange["name"]))


def shortcuts(exchange: Mapping[str, Any], bindings: Sequence[Mapping[str, Any]]) -> Iterator[CheckResult]:
    """Yield a failure for bindings of an exchange that has a route's front as alternate exchange. Pure."""
    name, front = str(exchange.get("name")), exchange["arguments"]["alternate-exchange"]
    if ends := sorted({f"'{binding.get('destination')}'" for binding in bindings}):
        text = f"delayed messages that match its bindings are delivered at once, to {', '.join(ends)}"
        advice = f"Unbind them: what matches no binding goes to '{front}'. Bind them to the exchange of deliver_to"
        yield fail(f"exchange '{name}'", text, advice=advice)


def plugin_exchange(exchange: Mapping[str, Any]) -> CheckResult:
    """Return the warning for one exchange of the plugin, and the command that moves it. Pure."""
    name = str(exchange.get("name"))
    waiting = exchange.get("messages_delayed")
    count = f". Messages that wait in it: {waiting}" if isinstance(waiting, int) else ""
    text = f"it has the type {PLUGIN_TYPE} of the archived plugin, which keeps one copy on one node{count}"
    advice = "Run `postdate migrate plugin`: it shows how to move it with producers unchanged, and changes nothing"
    return warn(f"exchange '{name}'", text, advice)
