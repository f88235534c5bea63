"""What must hold between settings that are each right alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as FilePath

from bridge.delay.duration import write_duration
from bridge.settings.mistakes import Conflict, Path
from bridge.settings.model import RabbitMQ, Redis, Settings
from bridge.settings.names import ROUTES
from bridge.settings.own_names import own_exchanges
from bridge.settings.rules import milliseconds
from bridge.settings.topics import topic_conflicts
from bridge.settings.trust import trust_conflicts

#: The names of level queues begin with that of the intake queue, and AMQP carries 255 bytes.
_QUEUE_MAX = 200
#: RabbitMQ's limit for every time that a queue or a message has, ten years of 365 days.
_RABBITMQ_WAIT_MAX = milliseconds("3650d")


def conflicts(settings: Settings) -> Iterator[Conflict]:
    """All conflicts, in the order of the sections."""
    yield from _bridge(settings)
    yield from _tls("redis", settings.redis)
    yield from _tls("rabbitmq", settings.rabbitmq)
    yield from _kafka(settings)
    yield from _times(settings)
    yield from _route_names(settings)
    yield from _duplicates(settings)
    yield from _loops(settings)
    yield from topic_conflicts(settings)
    yield from _levels(settings)
    yield from trust_conflicts(settings)


def _bridge(settings: Settings) -> Iterator[Conflict]:
    if settings.bridge.instance and settings.bridge.workers > 1:
        paths = (("bridge", "instance"), ("bridge", "workers"))
        yield Conflict(paths, "must be empty with several workers: each needs a name of its own")


def _tls(section: str, part: Redis | RabbitMQ) -> Iterator[Conflict]:
    url: Path = (section, "url")
    files = {"ca_file": part.ca_file, "cert_file": part.cert_file, "key_file": part.key_file}
    if part.key_file and not part.cert_file:
        yield Conflict(((section, "key_file"), (section, "cert_file")), f"needs {section}.cert_file beside it")
    scheme = part.url.get_secret_value().partition("://")[0]
    secure = scheme.replace("redis", "rediss", 1) if section == "redis" else "amqps"
    for name, file in files.items():
        if file and scheme not in ("rediss", "rediss+sentinel", "rediss+cluster", "amqps"):
            # Without this the files would be ignored, and passwords would go over the wire in the clear.
            yield Conflict(
                ((section, name), url), f"is for TLS, but {section}.url begins with {scheme}://; use {secure}://"
            )
        if file and not FilePath(file).is_file():
            yield Conflict(((section, name),), "names a file that does not exist")


def _kafka(settings: Settings) -> Iterator[Conflict]:
    kafka = settings.kafka
    protocol: Path = ("kafka", "security_protocol")
    secured = {"sasl_username": kafka.sasl_username, "sasl_password": kafka.sasl_password.get_secret_value()}
    for name, value in secured.items():
        if value and not kafka.security_protocol.startswith("SASL"):
            yield Conflict((("kafka", name), protocol), 'is used with kafka.security_protocol = "SASL_SSL" only')
    if kafka.security_protocol.startswith("SASL") and not all(secured.values()):
        yield Conflict((protocol, ("kafka", "sasl_username")), "needs kafka.sasl_username and kafka.sasl_password")
    if kafka.key_file and not kafka.cert_file:
        yield Conflict((("kafka", "key_file"), ("kafka", "cert_file")), "needs kafka.cert_file beside it")
    for name, file in {"ca_file": kafka.ca_file, "cert_file": kafka.cert_file, "key_file": kafka.key_file}.items():
        if file and not kafka.security_protocol.endswith("SSL"):
            yield Conflict((("kafka", name), protocol), 'is for TLS, and kafka.security_protocol is without; use "SSL"')
        if file and not FilePath(file).is_file():
            yield Conflict((("kafka", name),), "names a file that does not exist")


def _times(settings: Settings) -> Iterator[Conflict]:
    dispatch, retry = settings.dispatch, settings.retry
    if dispatch.takeover >= dispatch.lease:
        text = f"must be shorter than dispatch.lease ({_pair(dispatch.takeover, dispatch.lease)})"
        yield Conflict((("dispatch", "takeover"), ("dispatch", "lease")), text)
    if retry.max < retry.first:
        text = f"must not be shorter than retry.first ({_pair(retry.max, retry.first)})"
        yield Conflict((("retry", "max"), ("retry", "first")), text)


def _pair(mine_ms: int, other_ms: int) -> str:
    return f"{write_duration(mine_ms)} against {write_duration(other_ms)}"


def _route_names(settings: Settings) -> Iterator[Conflict]:
    for name, route in settings.routes.items():
        if route.broker == "kafka":
            continue
        intercept, queue = (ROUTES, name, "intercept"), (ROUTES, name, "queue")
        if not route.intercept:
            yield Conflict((intercept,), "must not be empty: the default exchange cannot be intercepted")
        if route.intercept.startswith("amq."):
            yield Conflict((intercept,), 'must not start with "amq.": RabbitMQ keeps these names for itself')
        if route.queue.startswith("amq."):
            yield Conflict((queue,), 'must not start with "amq.": RabbitMQ keeps these names for itself')
        if len(settings.queue_of(name).encode()) > 255:
            yield Conflict((queue, intercept), "is longer than 255 bytes, with the route's name in it: name a queue")


def _duplicates(settings: Settings) -> Iterator[Conflict]:
    intercepts: dict[str, str] = {}
    queues: dict[str, str] = {}
    for name, route in settings.routes.items():
        if route.broker == "kafka":
            continue
        first = intercepts.setdefault(route.intercept, name)
        if first != name:
            paths: tuple[Path, ...] = ((ROUTES, name, "intercept"), (ROUTES, first, "intercept"))
            yield Conflict(paths, f'is "{route.intercept}", as in {ROUTES}.{first}: an exchange belongs to one route')
        first = queues.setdefault(settings.queue_of(name), name)
        if first != name:
            mine = (ROUTES, name, "queue")
            text = f'is "{settings.queue_of(name)}", as in {ROUTES}.{first}: a queue belongs to one route'
            yield Conflict((mine, (ROUTES, first, "queue"), (ROUTES, name, "intercept")), text)


def _loops(settings: Settings) -> Iterator[Conflict]:
    own = own_exchanges(settings)
    for name, route in settings.routes.items():
        if route.broker == "rabbitmq" and own.fullmatch(route.deliver_to):
            text = f'is "{route.deliver_to}", an exchange that postdate makes for itself: name one that consumers have'
            yield Conflict(((ROUTES, name, "deliver_to"),), text)
        for other, intercepting in settings.routes.items():
            if "kafka" in (route.broker, intercepting.broker) or not route.deliver_to:
                continue
            if route.deliver_to != intercepting.intercept:
                continue
            whose = "this route" if other == name else f"{ROUTES}.{other}"
            paths: tuple[Path, ...] = ((ROUTES, name, "deliver_to"), (ROUTES, other, "intercept"))
            yield Conflict(paths, f'is "{route.deliver_to}", which {whose} intercepts: it would delay for ever')


def _levels(settings: Settings) -> Iterator[Conflict]:
    """What holds of routes without a store."""
    listed = ("headers", "levels")
    for name, route in settings.routes.items():
        mode: Path = (ROUTES, name, "mode")
        if route.mode == "ladder" and route.broker == "kafka":
            yield Conflict((mode, (ROUTES, name, "broker")), "must be redis or levels on Kafka: it has no ladder")
        if route.mode == "ladder" and route.broker == "rabbitmq" and settings.levels.last_hop == "broker":
            yield Conflict((("levels", "last_hop"), mode), "must be bridge where a route has mode ladder")
        if route.mode == "levels" and len(set(settings.headers.levels)) < len(settings.headers.levels):
            yield Conflict((listed, mode), "must not hold a level twice where a route has mode levels")
        longest = max(settings.headers.levels)
        if route.mode == "levels" and route.broker == "rabbitmq" and longest > _RABBITMQ_WAIT_MAX:
            limit = f"{write_duration(_RABBITMQ_WAIT_MAX)} (x-message-ttl = {_RABBITMQ_WAIT_MAX})"
            text = f"holds {write_duration(longest)}, and nothing waits in a queue of RabbitMQ for more than {limit}"
            yield Conflict((listed, mode), text)
        if route.mode != "redis" and len(settings.queue_of(name).encode()) > _QUEUE_MAX:
            yield Conflict(
                ((ROUTES, name, "queue"), mode), f"must be at most {_QUEUE_MAX} bytes where the mode is {route.mode}"
            )
