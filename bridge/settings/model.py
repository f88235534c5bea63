"""The tree of the settings: names, types, defaults. ``config.example.toml`` explains each one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bridge.delay.header import KNOWN_DIALECTS, LEVELS_MS, NATIVE
from bridge.delay.naming import Naming, read_naming
from bridge.delay.schedule import WAIT_MAX_MS, growing_waits_ms
from bridge.settings.urls import (
    AMQP_SCHEMES,
    REDIS_SCHEMES,
    DatabaseUrl,
    Hook,
    Listen,
    Servers,
    TokenServer,
    Url,
    WebAddress,
    check_amqp,
    check_redis,
)
from bridge.settings.values import (
    BrokerName,
    Destinations,
    Duration,
    LastStep,
    ListOf,
    Mapped,
    Number,
    OneOf,
    Postponed,
    Secret,
    Size,
    Text,
    Token,
    Whole,
    milliseconds,
    size_in_bytes,
)

_NAME = Text(r"[A-Za-z0-9_.-]{1,64}", "1 to 64 letters, digits, dots, dashes or underscores")
_INSTANCE = Text(r"[A-Za-z0-9_.-]{0,64}", "at most 64 letters, digits, dots, dashes or underscores")
_KEY_PREFIX = Text(r"[A-Za-z0-9_.:-]{1,64}", "1 to 64 letters, digits, dots, colons, dashes or underscores (no braces)")
_GROUP = Text(r"[A-Za-z0-9_.-]{1,200}", "1 to 200 letters, digits, dots, dashes or underscores")
_FILE = Text(r"[^\0]*", "the path of a file")
_TEXT = Text(r"[^\0]*", "text")
_BASE_PATH = Text(r"(/[A-Za-z0-9._~-]+)*", 'empty, or a path such as "/postdate" without a slash at the end')
_FIELD = Text(r"[^\0]{1,100}", "the name of a JSON field, in which * stands for any text")

BrokerKind = Literal["rabbitmq", "kafka"]
#: The names of the brokers, for people.
TITLES: Mapping[BrokerKind, str] = MappingProxyType({"rabbitmq": "RabbitMQ", "kafka": "Kafka"})
OnBad = Literal["dead", "deliver"]
OnSameKey = Literal["replace", "keep", "reject"]
MessageId = Literal["find", "key", "ignore"]
QueueType = Literal["quorum", "classic"]
Mode = Literal["redis", "levels", "ladder", "native"]
RouteKind = Literal["delay", "retry"]
Release = Literal["plain", "transactional"]
RoleName = Literal["viewer", "operator", "admin"]
ROLES: tuple[RoleName, ...] = ("viewer", "operator", "admin")
Partitioner = Literal["murmur2", "crc32", "same"]
DelayFrom = Literal["record", "arrival"]


class Section(BaseModel):
    """One table of the file. Frozen; an unknown name is an error; no error repeats a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Bridge(Section):
    name: Annotated[str, _NAME] = "postdate"
    instance: Annotated[str, _INSTANCE] = ""
    workers: Annotated[int, Whole(1, 64)] = 1
    shutdown_grace: Annotated[int, Duration("1ms", "1h")] = milliseconds("25s")
    setup: bool = True


class Redis(Section):
    url: Annotated[SecretStr, Url(REDIS_SCHEMES, check_redis)] = SecretStr("redis://127.0.0.1:6379/0")
    username: Annotated[str, _TEXT] = ""
    password: Annotated[SecretStr, Secret()] = SecretStr("")
    key_prefix: Annotated[str, _KEY_PREFIX] = "postdate"
    shards: Annotated[int, Whole(1, 256)] = 8
    durability: Annotated[Literal["always", "everysec", "replicas", "none"], OneOf()] = "everysec"
    replicas: Annotated[int, Whole(1, 16)] = 1
    timeout: Annotated[int, Duration("10ms", "5m")] = milliseconds("5s")
    connect_timeout: Annotated[int, Duration("10ms", "5m")] = milliseconds("5s")
    ca_file: Annotated[str, _FILE] = ""
    cert_file: Annotated[str, _FILE] = ""
    key_file: Annotated[str, _FILE] = ""


class OAuth(Section):
    """A login by tokens of an OAuth 2 server, which either broker may check."""

    oauth_issuer: Annotated[str, TokenServer()] = ""
    oauth_token_url: Annotated[str, TokenServer()] = ""
    oauth_client_id: Annotated[str, _TEXT] = ""
    oauth_client_secret: Annotated[SecretStr, Secret()] = SecretStr("")
    oauth_scope: Annotated[str, _TEXT] = ""
    oauth_ca_file: Annotated[str, _FILE] = ""


class RabbitMQ(OAuth):
    url: Annotated[SecretStr, Url(AMQP_SCHEMES, check_amqp)] = SecretStr("amqp://guest:guest@127.0.0.1:5672/%2F")
    password: Annotated[SecretStr, Secret()] = SecretStr("")
    auth_mechanism: Annotated[Literal["PLAIN", "EXTERNAL"], OneOf()] = "PLAIN"
    # AMQP counts heartbeats in whole seconds. RabbitMQ closes a connection after two to three silent ones.
    heartbeat: Annotated[int, Duration("1s", "1h", step="1s")] = milliseconds("5s")
    # basic.qos carries 16 bits. 0 would mean "no limit", and load the whole queue into this process.
    prefetch: Annotated[int, Whole(1, 65535)] = 2000
    window: Annotated[int, Whole(1, 65535)] = 2000
    confirm_timeout: Annotated[int, Duration("100ms", "1h")] = milliseconds("30s")
    queue_type: Annotated[QueueType, OneOf()] = "quorum"
    delay_from: Annotated[Literal["arrival", "broker"], OneOf()] = "arrival"
    management_url: Annotated[str, WebAddress()] = ""
    ca_file: Annotated[str, _FILE] = ""
    cert_file: Annotated[str, _FILE] = ""
    key_file: Annotated[str, _FILE] = ""

    @property
    def by_token(self) -> bool:
        """Whether postdate logs in with a token."""
        return bool(self.oauth_issuer or self.oauth_token_url)


class Kafka(OAuth):
    bootstrap_servers: Annotated[str, Servers()] = "127.0.0.1:9092"
    group: Annotated[str, _GROUP] = "postdate"
    session_timeout: Annotated[int, Duration("1s", "30m")] = milliseconds("6s")
    security_protocol: Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], OneOf()] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"], OneOf()
    ] = "PLAIN"
    sasl_username: Annotated[str, _TEXT] = ""
    sasl_password: Annotated[SecretStr, Secret()] = SecretStr("")
    aws_region: Annotated[str, _TEXT] = ""
    window: Annotated[int, Whole(1, 65535)] = 5000
    confirm_timeout: Annotated[int, Duration("1s", "1h")] = milliseconds("30s")
    compression: Annotated[Literal["none", "gzip", "snappy", "lz4", "zstd"], OneOf()] = "none"
    refresh: Annotated[int, Duration("1s", "1h")] = milliseconds("30s")
    partitioner: Annotated[Partitioner, OneOf()] = "murmur2"
    delay_from: Annotated[DelayFrom, OneOf()] = "record"
    timestamp: Annotated[Literal["release", "original"], OneOf()] = "release"
    intake_retention: Annotated[int, Duration("1m", "36500d")] = milliseconds("7d")
    release: Annotated[Release, OneOf()] = "plain"
    ca_file: Annotated[str, _FILE] = ""
    cert_file: Annotated[str, _FILE] = ""
    key_file: Annotated[str, _FILE] = ""

    @property
    def by_token(self) -> bool:
        """Whether postdate logs in with a token."""
        return self.sasl_mechanism in ("OAUTHBEARER", "AWS_MSK_IAM")

    @property
    def user(self) -> str:
        """The user, for a sentence. Which principal a token stands for, only the broker knows."""
        if self.sasl_mechanism == "AWS_MSK_IAM":
            return "AWS"
        return self.oauth_client_id if self.by_token else self.sasl_username


class Headers(Section):
    on_bad: Annotated[OnBad, OneOf()] = "dead"
    audit: bool = True
    compat: Annotated[Literal["none", "plugin"], OneOf()] = "none"
    on_same_key: Annotated[OnSameKey, OneOf()] = "replace"
    message_id: Annotated[MessageId, OneOf()] = "find"
    keep_user_id: bool = False
    keep_cc: bool = False
    keep_bcc: bool = False
    keep_x_death: bool = False
    keep_delivery_count: bool = False
    levels: Annotated[tuple[int, ...], ListOf(Duration("1ms", "36500d"), least=1)] = LEVELS_MS


class Limits(Section):
    max_delay: Annotated[int, Duration("1s", "36500d")] = milliseconds("365d")
    # A frame of 128 KiB holds 65,000 entries of two bytes. Each costs over a microsecond.
    header_entries: Annotated[int, Whole(1, 100_000)] = 1000
    # Redis limits a value to 512 MiB, which holds the message and its properties. The default is RabbitMQ 4's limit of
    # 16 MiB plus room for headers.
    max_body: Annotated[int, Size("1B", "500MiB")] = size_in_bytes("17MiB")
    intake_bytes: Annotated[int, Size("64KiB", "64GiB")] = size_in_bytes("64MiB")
    # Lua's unpack and Redis's commands accept only thousands of arguments.
    batch_max: Annotated[int, Whole(1, 5000)] = 500
    batch_bytes: Annotated[int, Size("64KiB", "256MiB")] = size_in_bytes("8MiB")
    window_bytes: Annotated[int, Size("64KiB", "64GiB")] = size_in_bytes("64MiB")


class Dispatch(Section):
    lease: Annotated[int, Duration("3s", "1h")] = milliseconds("15s")
    # Twice an instance's beat (bridge.process.members.BEAT_S): with less, a living instance would look dead.
    takeover: Annotated[int, Duration("2s", "1h")] = milliseconds("4s")
    pace: Annotated[int, Duration("1ms", "1s")] = milliseconds("1ms")


class Retry(Section):
    first: Annotated[int, Duration("1ms", "24h")] = milliseconds("500ms")
    factor: Annotated[float, Number(1.0, 100.0)] = 2.0
    max: Annotated[int, Duration("1ms", "7d")] = milliseconds("30s")
    attempts: Annotated[int, Whole(1, 1000)] = 8


class Levels(Section):
    rounding: Annotated[Literal["up", "nearest", "refuse"], OneOf()] = "up"
    queue_type: Annotated[Literal["", "quorum", "classic"], OneOf()] = ""
    last_hop: Annotated[Literal["bridge", "broker"], OneOf()] = "bridge"
    alone_after: Annotated[int, Duration("100ms", "1h")] = milliseconds("5s")
    retention: Annotated[int, Duration("1h", "3650d")] = milliseconds("7d")


class Log(Section):
    level: Annotated[Literal["debug", "info", "warning", "error"], OneOf()] = "info"
    format: Annotated[Literal["auto", "text", "json"], OneOf()] = "auto"


class Http(Section):
    enabled: bool = True
    listen: Annotated[str, Listen()] = "127.0.0.1:8480"
    live_listen: Annotated[str, Listen(optional=True)] = ""
    base_path: Annotated[str, _BASE_PATH] = ""
    cert_file: Annotated[str, _FILE] = ""
    key_file: Annotated[str, _FILE] = ""
    request_max: Annotated[int, Size("1KiB", "500MiB")] = size_in_bytes("20MiB")
    requests_per_second: Annotated[int, Whole(1, 100_000)] = 100


class NamedToken(Section):
    """The token of one person or program; the audit log has its name."""

    role: Annotated[RoleName, OneOf(ROLES)] = "viewer"
    token: Annotated[SecretStr, Token()] = SecretStr("")


class Auth(Section):
    viewer_token: Annotated[SecretStr, Token()] = SecretStr("")
    operator_token: Annotated[SecretStr, Token()] = SecretStr("")
    admin_token: Annotated[SecretStr, Token()] = SecretStr("")
    open_metrics: bool = False
    # A Mapping, as routes.
    tokens: Mapping[str, NamedToken] = Field(default_factory=dict)

    def known(self) -> dict[tuple[str, ...], tuple[RoleName, str, str]]:
        """The tokens that are set, by the path of their setting: role, name for the audit log, and token."""
        found: dict[tuple[str, ...], tuple[RoleName, str, str]] = {}
        for role in ROLES:
            found["auth", f"{role}_token"] = role, role, getattr(self, f"{role}_token").get_secret_value()
        for name, named in self.tokens.items():
            found["auth", "tokens", name, "token"] = named.role, name, named.token.get_secret_value()
        return {path: known for path, known in found.items() if known[2]}


class Ui(Section):
    enabled: bool = True
    bodies: Annotated[Literal["on", "masked", "off"], OneOf()] = "masked"
    mask: Annotated[tuple[str, ...], ListOf(_FIELD)] = (
        "*password*",
        "*passwd*",
        "*passphrase*",
        "*pwd*",
        "*secret*",
        "*credential*",
        "*token*",
        "*authorization*",
        "auth",
        "*apikey*",
        "*accesskey*",
        "*privatekey*",
        "*cookie*",
        "*sessionid*",
        "*card*",
        "pan",
        "pin",
        "*cvv*",
        "*cvc*",
        "*iban*",
        "ssn*",
        "*ssn",
        "*socialsecurity*",
    )


class History(Section):
    keep: Annotated[int, Duration("1m", "30d")] = milliseconds("24h")
    # An entry takes about 120 bytes of Redis's memory.
    max: Annotated[int, Whole(0, 10_000_000)] = 100_000


class JournalSection(Section):
    url: Annotated[SecretStr, DatabaseUrl()] = SecretStr("")
    password: Annotated[SecretStr, Secret()] = SecretStr("")
    write: Annotated[Literal["behind", "before"], OneOf()] = "behind"
    keep: Annotated[int, Duration("1h", "3650d")] = milliseconds("7d")
    restore: Annotated[Literal["ask", "auto"], OneOf()] = "ask"
    cold_after: Annotated[int, Duration("1m", "3650d", optional=True)] = 0


class Canary(Section):
    enabled: bool = True
    every: Annotated[int, Duration("1s", "1h")] = milliseconds("30s")
    delay: Annotated[int, Duration("1ms", "1h")] = milliseconds("2s")


class Tracing(Section):
    enabled: bool = False
    propagation: Annotated[Literal["preserve", "link"], OneOf()] = "preserve"


class Webhook(Section):
    url: Annotated[SecretStr, Hook()] = SecretStr("")
    secret: Annotated[SecretStr, Secret()] = SecretStr("")
    overdue_after: Annotated[int, Duration("1s", "24h")] = milliseconds("30s")
    every: Annotated[int, Duration("1s", "24h")] = milliseconds("1m")


@dataclass(frozen=True)
class Only:
    """Metadata of a field of ``Route`` that has a meaning for one broker, kind or mode alone; "" for any."""

    broker: BrokerKind | Literal[""] = ""
    kind: RouteKind | Literal[""] = ""
    mode: Mode | Literal[""] = ""


class Route(Section):
    """One intercepted exchange or topic, or failing queue, and its destinations.

    ``Settings`` resolves "", which means "inherited". A number of 0 means that it is not set.
    """

    kind: Annotated[RouteKind, OneOf()] = "delay"
    broker: Annotated[BrokerKind, OneOf()] = "rabbitmq"
    intercept: Annotated[str, BrokerName()] = ""
    deliver_to: Annotated[str | tuple[str, ...], Destinations()] = ()
    mode: Annotated[Mode, OneOf()] = "redis"
    order: Annotated[Literal["key", "route", "none"], OneOf()] = "key"
    queue: Annotated[str, BrokerName(), Only(broker="rabbitmq")] = ""
    queue_type: Annotated[Literal["", "quorum", "classic"], OneOf(), Only(broker="rabbitmq")] = ""
    dialects: Annotated[tuple[str, ...], ListOf(OneOf(sorted(KNOWN_DIALECTS))), Only(kind="delay")] = ()
    on_bad: Annotated[Literal["", "dead", "deliver"], OneOf(), Only(kind="delay")] = ""
    cancel: Annotated[bool, Only(kind="delay")] = True
    on_same_key: Annotated[Literal["", "replace", "keep", "reject"], OneOf(), Only(kind="delay", mode="redis")] = ""
    id_from: Annotated[Literal["message_id", "correlation_id"], OneOf(), Only(broker="rabbitmq", mode="redis")] = (
        "message_id"
    )
    also: Annotated[tuple[str, ...], ListOf(Mapped()), Only(broker="kafka")] = ()
    allow_to: Annotated[tuple[str, ...], ListOf(BrokerName()), Only(kind="delay")] = ()
    binary_numbers: Annotated[bool, Only(broker="kafka", kind="delay")] = False
    round_timestamps: Annotated[bool, Only(broker="rabbitmq", kind="delay")] = False
    tombstones: Annotated[Literal["deliver", "cancel"], OneOf(), Only(broker="kafka", kind="delay", mode="redis")] = (
        "deliver"
    )
    release: Annotated[Literal["", "plain", "transactional"], OneOf(), Only(broker="kafka", mode="redis")] = ""
    partitioner: Annotated[Literal["", Partitioner], OneOf(), Only(broker="kafka")] = ""
    delay_from: Annotated[Literal["", DelayFrom], OneOf(), Only(broker="kafka", kind="delay")] = ""
    # of retry routes
    schedule: Annotated[tuple[int, ...], ListOf(Duration("1ms", "365d")), Only(kind="retry")] = ()
    first: Annotated[int, Duration("0ms", "365d"), Only(kind="retry")] = 0
    factor: Annotated[float, Number(1.0, 100.0), Only(kind="retry")] = 2.0
    max: Annotated[int, Duration("0ms", "365d"), Only(kind="retry")] = 0
    attempts: Annotated[int, Whole(0, 1000), Only(kind="retry")] = 0
    then: Annotated[str, LastStep(), Only(kind="retry")] = "dead"
    hold: Annotated[bool, Only(broker="kafka", kind="retry")] = False
    originals: Annotated[tuple[str, ...], ListOf(BrokerName()), Only(broker="kafka", kind="retry")] = ()
    # smoothing, limits, priority
    jitter: Annotated[str, Postponed(), Only(mode="redis")] = ""
    max_rate: Annotated[float, Number(0.0, 1_000_000.0), Only(mode="redis")] = 0.0
    max_parked: Annotated[int, Whole(0, 10**12), Only(mode="redis")] = 0
    max_parked_bytes: Annotated[int, Size("0B", "100000GiB"), Only(mode="redis")] = 0
    on_full: Annotated[Literal["pause", "dead"], OneOf(), Only(mode="redis")] = "pause"
    priority: Annotated[bool, Only(kind="delay", mode="redis")] = False

    @property
    def stored(self) -> bool:
        return self.mode == "redis"

    def changes(self, field: str) -> bool:
        return bool(getattr(self, field) != type(self).model_fields[field].default)

    @property
    def retries(self) -> bool:
        """Whether it returns messages that consumers rejected."""
        return self.kind == "retry"

    @property
    def targets(self) -> tuple[str, ...]:
        """The destinations; none for a retry route of RabbitMQ, which returns messages to its queue."""
        return (self.deliver_to,) if isinstance(self.deliver_to, str) else self.deliver_to

    @property
    def target(self) -> str:
        """The first destination, which most routes have alone. "" is RabbitMQ's default exchange, or none."""
        return self.targets[0] if self.targets else ""

    @property
    def last_target(self) -> str:
        """The exchange or topic that gets a message after the last attempt; "" where it becomes a dead letter."""
        return self.then.partition(":")[2]

    def lacks(self) -> list[str]:
        needed = ["queue"] if self.retries and self.broker == "rabbitmq" else ["intercept", "deliver_to"]
        if self.retries and not self.schedule:
            needed += ["first", "attempts"] if self.first or self.attempts else ["schedule"]
        return [name for name in needed if name not in self.model_fields_set]

    def namings(self) -> tuple[Naming, ...]:
        """The pairs of intercepted topic and destination: first ``intercept``, then ``also``."""
        others = (read_naming(text) for text in self.also)
        return (Naming(self.intercept, self.target), *(naming for naming in others if naming is not None))

    def pairs(self) -> tuple[Naming, ...]:
        """``namings``, and then those of ``intercept`` and each further destination."""
        return (*self.namings(), *(Naming(self.intercept, target) for target in self.targets[1:]))


@dataclass(frozen=True)
class Origin:
    """Where settings were read from."""

    #: The settings file, or "".
    file: str = ""
    #: The source of each value that is not the default, by dotted name: a flag, "environment", "file PATH" for a secret
    #: file, or the settings file.
    sources: Mapping[str, str] = field(default_factory=dict)


class Settings(BaseSettings):
    """All settings. ``load`` makes them, and checks that they agree with each other; the constructor does not.

    What is asked of a route raises KeyError for an unknown one.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    bridge: Bridge = Bridge()
    redis: Redis = Redis()
    rabbitmq: RabbitMQ = RabbitMQ()
    kafka: Kafka = Kafka()
    headers: Headers = Headers()
    limits: Limits = Limits()
    dispatch: Dispatch = Dispatch()
    retry: Retry = Retry()
    levels: Levels = Levels()
    log: Log = Log()
    http: Http = Http()
    auth: Auth = Auth()
    ui: Ui = Ui()
    history: History = History()
    journal: JournalSection = JournalSection()
    canary: Canary = Canary()
    tracing: Tracing = Tracing()
    webhook: Webhook = Webhook()
    # A Mapping, not a dict: read only for the type checker.
    routes: Mapping[str, Route] = Field(default_factory=dict)

    # Not a setting.
    origin: Origin = Field(default=Origin(), exclude=True, repr=False)

    @property
    def file(self) -> str:
        """The settings file, or "" for none."""
        return self.origin.file

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read only the arguments. By default pydantic-settings would read a variable named LOG as [log]."""
        return (init_settings,)

    def routes_of(self, broker: BrokerKind) -> list[str]:
        return [name for name, route in self.routes.items() if route.broker == broker]

    @property
    def uses_store(self) -> bool:
        return any(route.stored for route in self.routes.values())

    def is_set(self, name: str) -> bool:
        """Whether a source sets this setting (dotted name), even to its default."""
        return name in self.origin.sources

    def names_broker(self, broker: BrokerKind) -> bool:
        """Whether a route uses this broker, or a source sets anything in its section."""
        return bool(self.routes_of(broker)) or any(name.startswith(f"{broker}.") for name in self.origin.sources)

    def only(self, names: Iterable[str]) -> Settings:
        """The same settings with only these routes."""
        return self.model_copy(update={"routes": {name: self.routes[name] for name in names}})

    def queue_of(self, route: str) -> str:
        """The intake queue of a route.

        ``queue`` names it, except on a retry route, where that is the queue of the consumers.
        """
        found = self.routes[route]
        return (not found.retries and found.queue) or f"postdate.{route}"

    def lanes_of(self, route: str) -> dict[str, str]:
        """The destinations of a route by the names under which a sink knows them. The first has the route's own."""
        targets = self.routes[route].targets or ("",)
        return {f"{route}/{number}" if number else route: target for number, target in enumerate(targets)}

    def level_prefix_of(self, route: str) -> str:
        """The beginning of the names of a Kafka route's level topics."""
        return f"{self.kafka.group}.{route}."

    def queue_type_of(self, route: str) -> QueueType:
        return self.routes[route].queue_type or self.rabbitmq.queue_type

    def level_queue_type_of(self, route: str) -> QueueType:
        return self.levels.queue_type or self.queue_type_of(route)

    def on_bad_of(self, route: str) -> OnBad:
        return self.routes[route].on_bad or self.headers.on_bad

    def on_same_key_of(self, route: str) -> OnSameKey:
        return self.routes[route].on_same_key or self.headers.on_same_key

    def message_id_of(self, route: str) -> MessageId:
        """What a route does with a message's own id.

        A Kafka record has only its key, which many records share: it never replaces a parked one. Neither does a
        message that failed: it would replace another failed message.
        """
        found = self.routes[route]
        if found.broker == "kafka":
            return "find"
        wanted = self.headers.message_id
        return "find" if found.retries and wanted == "key" else wanted

    def release_of(self, route: str) -> Release:
        return self.routes[route].release or self.kafka.release

    def partitioner_of(self, route: str) -> Partitioner:
        """How a Kafka route chooses partitions.

        A record that failed has the partition number of its consumers already, if its error handler kept it.
        """
        found = self.routes[route]
        return found.partitioner or ("same" if found.retries else self.kafka.partitioner)

    def delay_from_of(self, route: str) -> DelayFrom:
        return self.routes[route].delay_from or self.kafka.delay_from

    def dialects_of(self, route: str) -> tuple[str, ...]:
        """The dialects that a route's rules have.

        On RabbitMQ always the header by which RabbitMQ 4.4 delays: where it would, postdate reads it, too.
        """
        found = self.routes[route]
        native = found.broker == "rabbitmq" and not found.retries and NATIVE not in found.dialects
        return (*found.dialects, NATIVE) if native else found.dialects

    def schedule_of(self, route: str) -> tuple[int, ...]:
        """The waits (ms) of a retry route."""
        found = self.routes[route]
        if found.schedule:
            return found.schedule
        return growing_waits_ms(found.first, found.factor, found.max or WAIT_MAX_MS, found.attempts)

    def binary_setting_of(self, route: str) -> str:
        """The setting that lets a route read binary numbers; "" where its broker has typed headers."""
        return f"routes.{route}.binary_numbers" if self.routes[route].broker == "kafka" else ""

    def allowed_destinations_of(self, route: str) -> frozenset[str] | None:
        """The destinations that a header may name on a route; None where no header may."""
        found = self.routes[route]
        return frozenset(found.allow_to) if found.broker == "kafka" and not found.retries else None

    def allowed_routing_keys_of(self, route: str) -> frozenset[bytes] | None:
        """The routing keys that producers may use on a route, or None for any."""
        found = self.routes[route]
        listed = found.broker == "rabbitmq" and not found.retries and not found.target and found.allow_to
        return frozenset(queue.encode() for queue in found.allow_to) if listed else None
