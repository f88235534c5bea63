"""What must hold between settings that are valid one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, takewhile
from pathlib import Path as FilePath
from typing import NamedTuple

from bridge.delay.duration import write_duration
from bridge.delay.naming import Naming, is_topic, mistake, taken_by
from bridge.settings.mistakes import Conflict, Path
from bridge.settings.model import ROLES, Kafka, OAuth, Only, RabbitMQ, Redis, Route, Settings
from bridge.settings.names import ROUTES, TOKENS
from bridge.settings.own_names import BACK, own_exchanges, own_queues, takes_level_topic
from bridge.settings.process_plan import is_canary
from bridge.settings.urls import is_loopback
from bridge.settings.values import milliseconds

#: The names of level queues begin with the intake queue's name. AMQP allows 255 bytes.
_QUEUE_MAX = 200
#: The names of level topics begin with the group and the route's name. Kafka allows 249 characters.
_LEVEL_PREFIX_MAX = 200
#: RabbitMQ's limit for every TTL: ten years of 365 days.
_RABBITMQ_TTL_MAX = milliseconds("3650d")
_GROWING = ("first", "factor", "max", "attempts")


def conflicts(settings: Settings) -> Iterator[Conflict]:
    yield from _bridge(settings)
    yield from _url_tls("redis", settings.redis)
    yield from _url_tls("rabbitmq", settings.rabbitmq)
    yield from _rabbitmq_login(settings.rabbitmq)
    yield from _kafka(settings)
    yield from _times(settings)
    yield from _cold(settings)
    yield from _http(settings)
    yield from _reserved(settings)
    for name in settings.routes:
        yield from _kind(settings, name)
    yield from _exchanges(settings)
    yield from _topics(settings)
    yield from _modes(settings)
    yield from _trust(settings)


def _of(section: str, *names: str) -> tuple[Path, ...]:
    """The paths of settings of one section."""
    return tuple((section, name) for name in names)


def _in(route: str, *fields: str) -> tuple[Path, ...]:
    """The paths of fields of one route."""
    return tuple((ROUTES, route, field) for field in fields)


def _bridge(settings: Settings) -> Iterator[Conflict]:
    if settings.bridge.instance and settings.bridge.workers > 1:
        text = "must be empty if bridge.workers is more than 1: workers must not share a name"
        yield Conflict(_of("bridge", "instance", "workers"), text)


def _cold(settings: Settings) -> Iterator[Conflict]:
    path: Path = ("journal", "cold_after")
    if settings.journal.cold_after and not settings.journal.url.get_secret_value():
        yield Conflict((path, ("journal", "url")), "requires journal.url: cold messages wait in its database")


def _url_tls(section: str, part: Redis | RabbitMQ) -> Iterator[Conflict]:
    scheme = part.url.get_secret_value().partition("://")[0]
    secure = scheme.replace("redis", "rediss", 1) if section == "redis" else "amqps"
    # Otherwise the files would be ignored, and passwords would cross the network in clear text.
    needs = None if scheme.startswith(("rediss", "amqps")) else f"{section}.url must begin with {secure}://"
    yield from _tls(section, part, "url", needs)


def _tls(section: str, part: Redis | RabbitMQ | Kafka, by: str, needs: str | None) -> Iterator[Conflict]:
    """``by``: the setting that decides about TLS. ``needs``: what it must be, None where it is."""
    files = {"ca_file": part.ca_file, "cert_file": part.cert_file, "key_file": part.key_file}
    if part.key_file and not part.cert_file:
        yield Conflict(_of(section, "key_file", "cert_file"), f"requires {section}.cert_file")
    for name in [name for name, file in files.items() if file and needs]:
        yield Conflict(_of(section, name, by), f"requires TLS: {needs}")
    yield from _missing_files(section, files)


def _rabbitmq_login(rabbitmq: RabbitMQ) -> Iterator[Conflict]:
    """A login needs its own settings, and none of another login's."""
    external = rabbitmq.auth_mechanism == "EXTERNAL"
    if external and not (rabbitmq.cert_file and rabbitmq.url.get_secret_value().startswith("amqps://")):
        text = "requires a client certificate: rabbitmq.cert_file, and a rabbitmq.url that begins with amqps://"
        yield Conflict(_of("rabbitmq", "auth_mechanism", "cert_file", "url"), text)
    given = [name for name, value in _oauth_of(rabbitmq).items() if value]
    if external:
        unused = [*given, *(["password"] if rabbitmq.password.get_secret_value() else [])]
        for name in unused:
            text = 'is not used with rabbitmq.auth_mechanism = "EXTERNAL"'
            yield Conflict(_of("rabbitmq", name, "auth_mechanism"), text)
    elif given:
        yield from _oauth("rabbitmq", rabbitmq, given[0])
        if rabbitmq.password.get_secret_value():
            text = f"is not used with rabbitmq.{given[0]}: the token is the password"
            yield Conflict(_of("rabbitmq", "password", given[0]), text)


def _kafka(settings: Settings) -> Iterator[Conflict]:
    kafka = settings.kafka
    yield from _kafka_login(kafka)
    needs = 'kafka.security_protocol must be "SSL" or "SASL_SSL"'
    yield from _tls("kafka", kafka, "security_protocol", None if kafka.security_protocol.endswith("SSL") else needs)


def _missing_files(section: str, files: Mapping[str, str]) -> Iterator[Conflict]:
    for name, file in files.items():
        if file and not FilePath(file).is_file():
            yield Conflict(_of(section, name), "names a file that does not exist")


def _kafka_login(kafka: Kafka) -> Iterator[Conflict]:
    """A login needs its own settings, and none of another login's."""
    password = {"sasl_username": kafka.sasl_username, "sasl_password": kafka.sasl_password.get_secret_value()}
    given = {**password, **_oauth_of(kafka), "aws_region": kafka.aws_region}
    if not kafka.security_protocol.startswith("SASL"):
        for name in [name for name, value in given.items() if value]:
            text = 'requires kafka.security_protocol = "SASL_SSL"'
            yield Conflict(_of("kafka", name, "security_protocol"), text)
        return
    if kafka.sasl_mechanism == "AWS_MSK_IAM":
        names: set[str] = {"aws_region"}
        if not kafka.aws_region:
            yield Conflict(_of("kafka", "sasl_mechanism", "aws_region"), "requires kafka.aws_region")
    elif kafka.sasl_mechanism == "OAUTHBEARER":
        names = set(_oauth_of(kafka))
        yield from _oauth("kafka", kafka, "sasl_mechanism")
    else:
        names = set(password)
        if not all(password.values()):
            needs = _of("kafka", "security_protocol", "sasl_username", "sasl_mechanism")
            yield Conflict(needs, "requires kafka.sasl_username and kafka.sasl_password")
    for name in [name for name, value in given.items() if value and name not in names]:
        text = f"is not used with kafka.sasl_mechanism = {kafka.sasl_mechanism!r}"
        yield Conflict(_of("kafka", name, "sasl_mechanism"), text)


def _oauth_of(part: OAuth) -> dict[str, str]:
    """The settings of a login by OAuth, by name."""
    found = {name: getattr(part, name) for name in OAuth.model_fields}
    return {**found, "oauth_client_secret": part.oauth_client_secret.get_secret_value()}


def _oauth(section: str, part: OAuth, asked_by: str) -> Iterator[Conflict]:
    """What a login by OAuth needs. ``asked_by``: the setting that asks for it."""
    if bool(part.oauth_issuer) == bool(part.oauth_token_url):
        text = f"requires {section}.oauth_issuer or {section}.oauth_token_url, and not both"
        yield Conflict(_of(section, asked_by, "oauth_issuer", "oauth_token_url"), text)
    if not part.oauth_client_id or not part.oauth_client_secret.get_secret_value():
        text = f"requires {section}.oauth_client_id and {section}.oauth_client_secret"
        yield Conflict(_of(section, asked_by, "oauth_client_id", "oauth_client_secret"), text)
    yield from _missing_files(section, {"oauth_ca_file": part.oauth_ca_file})


def _times(settings: Settings) -> Iterator[Conflict]:
    dispatch, retry = settings.dispatch, settings.retry
    if dispatch.takeover >= dispatch.lease:
        text = f"must be shorter than dispatch.lease ({_pair('takeover', dispatch.takeover, 'lease', dispatch.lease)})"
        yield Conflict(_of("dispatch", "takeover", "lease"), text)
    if retry.max < retry.first:
        text = f"must not be shorter than retry.first ({_pair('max', retry.max, 'first', retry.first)})"
        yield Conflict(_of("retry", "max", "first"), text)


def listening_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Conflicts that matter to a process which serves HTTP. Other commands may lack the tokens of a service."""
    http = settings.http
    if http.enabled and not is_loopback(http.listen) and not settings.auth.known():
        text = (
            "lets other machines read and change messages, so it requires auth.admin_token (or operator_token, "
            'viewer_token). Set one, or listen on "127.0.0.1:8480"'
        )
        yield Conflict((("http", "listen"), ("auth", "admin_token")), text)


def _http(settings: Settings) -> Iterator[Conflict]:
    http = settings.http
    yield from _tokens(settings)
    if bool(http.cert_file) != bool(http.key_file):
        yield Conflict(_of("http", "cert_file", "key_file"), "requires http.cert_file and http.key_file")
    yield from _missing_files("http", {"cert_file": http.cert_file, "key_file": http.key_file})
    if settings.canary.every <= settings.canary.delay:
        text = f"must be longer than canary.delay ({write_duration(settings.canary.delay)})"
        yield Conflict(_of("canary", "every", "delay"), text)


def _tokens(settings: Settings) -> Iterator[Conflict]:
    known = settings.auth.known()
    for token, other in combinations(known, 2):
        if known[token][2] == known[other][2]:
            yield Conflict((token, other), f"must not be equal to {'.'.join(other)}: each token names who acts")
    for name, named in settings.auth.tokens.items():
        path: Path = (*TOKENS, name, "token")
        if not named.token.get_secret_value():
            yield Conflict((path, (*TOKENS, name, "role")), "must be set. Or name its file in token_file")
        if name in (*ROLES, "local"):
            text = "has a name that stands for other callers in the audit log. Choose another name"
            yield Conflict(((*TOKENS, name, "role"), path), text)


def _reserved(settings: Settings) -> Iterator[Conflict]:
    for name in filter(is_canary, settings.routes):
        yield Conflict(((ROUTES, name),), "is reserved for postdate's canary. Choose another name")


def _pair(mine: str, mine_ms: int, other: str, other_ms: int) -> str:
    return f"{mine} {write_duration(mine_ms)}, {other} {write_duration(other_ms)}"


# The kinds of routes


def _kind(settings: Settings, name: str) -> Iterator[Conflict]:
    route = settings.routes[name]
    if route.retries:
        yield from _retry(name, route)
    yield from _out_of_place(name, route)
    if not route.stored and len(route.targets) > 1:
        yield Conflict(_in(name, "deliver_to", "mode"), f"must be one name if the mode is {route.mode}")
    if len(route.targets) > 1 and route.broker == "kafka":
        if settings.release_of(name) == "transactional":
            yield Conflict(_in(name, "deliver_to", "release"), "must be one name if release is transactional")
        for field in filter(route.changes, ("also", "allow_to")):
            yield Conflict(_in(name, field, "deliver_to"), "must not be set: deliver_to has several names")
    if route.changes("on_full") and not (route.max_parked or route.max_parked_bytes):
        yield Conflict(_in(name, "on_full"), "requires max_parked or max_parked_bytes")


def _out_of_place(name: str, route: Route) -> Iterator[Conflict]:
    """Yield the fields that have no meaning for this route (``Only``)."""
    texts = {
        ("kind", "delay"): "is only for delay routes: a retry route reads no delay header",
        ("kind", "retry"): 'is only for retry routes: set kind = "retry", or remove it',
        ("broker", "rabbitmq"): "is only for RabbitMQ: Kafka has no queues",
        ("broker", "kafka"): 'is only for Kafka: set broker = "kafka" in this route, or remove it',
        ("mode", "redis"): f"is only for mode redis, not for {route.mode}",
    }
    for field, info in filter(lambda item: route.changes(item[0]), Route.model_fields.items()):
        for only in (entry for entry in info.metadata if isinstance(entry, Only)):
            for (by, value), text in texts.items():
                if getattr(only, by) == value != getattr(route, by):
                    yield Conflict(_in(name, field, by), text)


def _retry(name: str, route: Route) -> Iterator[Conflict]:
    if not route.stored:
        yield Conflict(_in(name, "mode", "kind"), "must be redis on a retry route")
    if route.broker == "rabbitmq":
        for field in filter(route.changes, ("intercept", "deliver_to")):
            text = "must not be set: a retry route returns messages to its queue alone"
            yield Conflict(_in(name, field, "kind"), text)
    ending = "exchange" if route.broker == "rabbitmq" else "topic"
    if route.then != "dead" and not route.then.startswith(f"{ending}:"):
        yield Conflict(_in(name, "then", "broker"), f'must be "dead" or "{ending}:NAME"')
    if route.hold and route.order == "none":
        yield Conflict(_in(name, "hold", "order"), "must be false if order is none, which keeps no order")
    grows = [field for field in _GROWING if route.changes(field)]
    if route.schedule and grows:
        yield Conflict(_in(name, "schedule", grows[0]), f"must not be set together with {', '.join(grows)}")
    if route.max and route.max < route.first:
        yield Conflict(_in(name, "max", "first"), "must not be shorter than first")


# RabbitMQ: exchanges and queues


def _exchanges(settings: Settings) -> Iterator[Conflict]:
    for name in settings.routes_of("rabbitmq"):
        yield from _exchange_names(settings, name)
    yield from _shared(settings)
    yield from _exchange_loops(settings)


def _exchange_names(settings: Settings, name: str) -> Iterator[Conflict]:
    route = settings.routes[name]
    for field in ("queue", "intercept"):
        if getattr(route, field).startswith("amq."):
            yield Conflict(_in(name, field), 'must not start with "amq.": RabbitMQ reserves these names')
    if route.retries:
        yield from _failing_queue(settings, name)
        return
    if not route.intercept:
        yield Conflict(_in(name, "intercept"), "must not be empty: postdate cannot intercept the default exchange")
    if len(settings.queue_of(name).encode()) > 255:
        # A queue that is set is checked by its rule. Only the default name can be too long here.
        text = "must be set: the default name contains the route's and is over 255 bytes"
        yield Conflict(_in(name, "queue", "intercept"), text)


def _failing_queue(settings: Settings, name: str) -> Iterator[Conflict]:
    """Yield what is wrong with the queue of a retry route's consumers."""
    path = _in(name, "queue")
    queue = settings.routes[name].queue
    if not queue:
        yield Conflict(path, "must name the queue of the consumers")
    if own_queues(settings).fullmatch(queue):
        yield Conflict(path, f'is "{queue}", an internal queue of postdate: name the queue of the consumers')
    for other in takewhile(lambda candidate: candidate != name, settings.routes_of("rabbitmq")):
        if settings.routes[other].retries and settings.routes[other].queue == queue:
            text = f'is "{queue}", whose rejected messages {ROUTES}.{other} returns already'
            yield Conflict(path + _in(other, "queue"), text)
    longest = f"{settings.queue_of(name)}.{BACK}"
    if len(longest.encode()) > 255:
        yield Conflict(((ROUTES, name),), "has a name that is too long for a queue of RabbitMQ")


def _shared(settings: Settings) -> Iterator[Conflict]:
    intercepts: dict[str, str] = {}
    queues: dict[str, str] = {}
    for name in settings.routes_of("rabbitmq"):
        intercept, queue = settings.routes[name].intercept, settings.queue_of(name)
        first = intercepts.setdefault(intercept, name) if intercept else name
        if first != name:
            paths = _in(name, "intercept") + _in(first, "intercept")
            yield Conflict(paths, f'is "{intercept}", which {ROUTES}.{first} intercepts already')
        first = queues.setdefault(queue, name)
        if first != name:
            paths = _in(name, "queue") + _in(first, "queue") + _in(name, "intercept")
            yield Conflict(paths, f'is "{queue}", which is already the queue of {ROUTES}.{first}')


def _exchange_loops(settings: Settings) -> Iterator[Conflict]:
    own = own_exchanges(settings)
    routes = {name: settings.routes[name] for name in settings.routes_of("rabbitmq")}
    for name, route in routes.items():
        if own.fullmatch(route.last_target):
            text = f'names "{route.last_target}", an exchange that postdate declares for itself: name your own exchange'
            yield Conflict(_in(name, "then"), text)
        path = _in(name, "deliver_to")
        for target in route.targets:
            if own.fullmatch(target):
                text = f'is "{target}", an exchange that postdate declares for itself: name your own exchange'
                yield Conflict(path, text)
            if not target and len(route.targets) > 1:
                yield Conflict(path, 'must not have the default exchange ("") among several')
            for other, intercepting in routes.items():
                if target and target == intercepting.intercept:
                    yield Conflict(path + _in(other, "intercept"), _looping(target, name, other))


def _looping(target: str, route: str, interceptor: str) -> str:
    whose = "this route" if interceptor == route else f"{ROUTES}.{interceptor}"
    return f'is "{target}", which {whose} intercepts: messages would loop forever'


# Kafka: topics


class _Named(NamedTuple):
    """A naming and the setting that contains it. ``item`` is its position in ``also``, from 1, or 0."""

    route: str
    naming: Naming
    item: int

    def path(self, field: str) -> Path:
        """The path of the setting that contains ``field`` (intercept or deliver_to)."""
        return (ROUTES, self.route, "also" if self.item else field)

    def says(self, text: str) -> str:
        return f"(item {self.item}) {text}" if self.item else text


def _topics(settings: Settings) -> Iterator[Conflict]:
    named = [
        _Named(name, naming, item)
        for name in settings.routes_of("kafka")
        if settings.routes[name].intercept and settings.routes[name].targets
        for item, naming in _numbered(settings.routes[name])
    ]
    good = [intake for intake in named if not mistake(intake.naming)]
    for intake in named:
        if text := mistake(intake.naming):
            yield Conflict((intake.path(_wrong_half(intake.naming)),), intake.says(text))
    for first, second in combinations(good, 2):
        if (
            (first.route, first.naming.intercept) != (second.route, second.naming.intercept)
            or first.item
            or second.item
        ):
            yield from _overlap(first, second)
    for intake in good:
        yield from _topic_loops(intake, good)
    yield from _allowed_topics(settings, good)
    yield from _last_topics(settings, good)
    for name in settings.routes_of("kafka"):
        if settings.routes[name].mode == "levels":
            yield from _level_topics(settings, name, good)


def _numbered(route: Route) -> Iterator[tuple[int, Naming]]:
    """The namings of a route with their position in ``also``, from 1; 0 for those of ``intercept``."""
    yield from enumerate(route.namings())
    for naming in route.pairs()[len(route.namings()) :]:
        yield 0, naming


def _wrong_half(naming: Naming) -> str:
    return "intercept" if mistake(Naming(naming.intercept, naming.intercept)) else "deliver_to"


def _overlap(first: _Named, second: _Named) -> Iterator[Conflict]:
    mine, theirs = second.naming.intercept, first.naming.intercept
    if first.naming.meets(second.naming):
        whose = "this route" if first.route == second.route else f"{ROUTES}.{first.route}"
        by = "" if mine == theirs else f' by "{theirs}"'
        text = f'is "{mine}", which {whose} intercepts already{by}'
        yield Conflict((second.path("intercept"), first.path("intercept")), second.says(text))


def _topic_loops(intake: _Named, all_named: list[_Named]) -> Iterator[Conflict]:
    for other in all_named:
        if intake.naming.always_feeds(other.naming):
            text = _looping(intake.naming.deliver_to, intake.route, other.route)
            yield Conflict((intake.path("deliver_to"), other.path("intercept")), intake.says(text))


def _allowed_topics(settings: Settings, named: list[_Named]) -> Iterator[Conflict]:
    taken = [(intake.route, intake.naming) for intake in named]
    for name in settings.routes_of("kafka"):
        path = _in(name, "allow_to")
        for item, topic in enumerate(settings.routes[name].allow_to, start=1):
            if not is_topic(topic):
                yield Conflict(path, f"(item {item}) must be the name of a topic, without *")
            elif (route := taken_by(topic, taken)) is not None:
                yield Conflict(path, f"(item {item}) {_looping(topic, name, route)}")


def _last_topics(settings: Settings, named: list[_Named]) -> Iterator[Conflict]:
    """A retry route that reads its own last topic would write to it again at once, for ever."""
    taken = [(intake.route, intake.naming) for intake in named]
    for name in settings.routes_of("kafka"):
        topic, path = settings.routes[name].last_target, _in(name, "then")
        if not topic:
            continue
        if not is_topic(topic):
            yield Conflict(path, f'names "{topic}", which cannot be the name of a topic')
        elif (route := taken_by(topic, taken)) is not None:
            whose = "this route" if route == name else f"{ROUTES}.{route}"
            yield Conflict(path, f'names "{topic}", which {whose} intercepts: messages could loop forever')
        elif topic in {naming.deliver_to for naming in settings.routes[name].pairs()}:
            yield Conflict(path, f'names "{topic}", the destination of this route: messages could loop forever')


def _level_topics(settings: Settings, name: str, named: list[_Named]) -> Iterator[Conflict]:
    mode = _in(name, "mode")
    prefix = settings.level_prefix_of(name)
    if len(prefix) > _LEVEL_PREFIX_MAX:
        text = f"and the route's name must have at most {_LEVEL_PREFIX_MAX - 2} characters together"
        yield Conflict(_of("kafka", "group") + mode, text)
    for intake in named:
        if takes_level_topic(intake.naming, prefix):
            text = f'is "{intake.naming.intercept}", which matches the level topics of {ROUTES}.{name}: "{prefix}*"'
            yield Conflict((intake.path("intercept"), *mode), intake.says(text))


# Modes, and what producers may ask for


def _modes(settings: Settings) -> Iterator[Conflict]:
    listed = _of("headers", "levels")
    for name, route in settings.routes.items():
        mode = _in(name, "mode")
        if route.mode in ("ladder", "native") and route.broker == "kafka":
            yield Conflict(_in(name, "mode", "broker"), "must be redis or levels on Kafka")
        handed = route.mode in ("ladder", "native") and route.broker == "rabbitmq"
        if handed and settings.levels.last_hop == "broker":
            yield Conflict(_of("levels", "last_hop") + mode, f"must be bridge: {ROUTES}.{name} has mode {route.mode}")
        if route.mode == "levels" and len(set(settings.headers.levels)) < len(settings.headers.levels):
            yield Conflict(listed + mode, f"must not contain a level twice: {ROUTES}.{name} has mode levels")
        longest = max(settings.headers.levels)
        if route.mode == "levels" and route.broker == "rabbitmq" and longest > _RABBITMQ_TTL_MAX:
            limit = f"{write_duration(_RABBITMQ_TTL_MAX)} (x-message-ttl = {_RABBITMQ_TTL_MAX})"
            yield Conflict(listed + mode, f"contains {write_duration(longest)}, but RabbitMQ's limit is {limit}")
        if route.mode != "redis" and len(settings.queue_of(name).encode()) > _QUEUE_MAX:
            text = f"must be at most {_QUEUE_MAX} bytes if the mode is {route.mode}"
            yield Conflict(_in(name, "queue") + mode, text)


def _trust(settings: Settings) -> Iterator[Conflict]:
    for name, route in settings.routes.items():
        if route.tombstones == "cancel" and not route.cancel:
            yield Conflict(_in(name, "tombstones", "cancel"), "must be deliver if cancel is false")
        if route.broker == "rabbitmq" and "allow_to" in route.model_fields_set:
            yield from _allowed_queues(settings, name, route)


def _allowed_queues(settings: Settings, name: str, route: Route) -> Iterator[Conflict]:
    path = _in(name, "allow_to")
    if route.target and not route.allow_to:
        return
    if route.target:
        text = f'is only for deliver_to = "": the bindings of exchange "{route.target}" choose the queues'
        yield Conflict(_in(name, "allow_to", "deliver_to"), text)
        return
    if not route.allow_to:
        yield Conflict(path, "must name at least one queue. Remove it to let producers name any queue")
    if settings.headers.keep_cc:
        yield Conflict(path + _of("headers", "keep_cc"), "requires headers.keep_cc = false: CC can name more queues")
    own = own_queues(settings)
    for item, queue in enumerate(route.allow_to, start=1):
        if not queue:
            yield Conflict(path, f"(item {item}) must be the name of a queue")
        elif own.fullmatch(queue):
            yield Conflict(path, f'(item {item}) is "{queue}", an internal queue of postdate')
