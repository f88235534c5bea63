"""What the adapter needs to know of a cluster: where it is, who we are to it, how records leave."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from adapters.kafka.partition import Partitioner
from bridge.settings import Kafka

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
#: What a record's timestamp says when it leaves: the moment it leaves, or what its producer wrote.
Timestamp = Literal["release", "original"]


@dataclass(frozen=True)
class KafkaRules:
    """``bootstrap_servers`` is host:port, several with commas; ``window`` are messages, sent and not yet answered, and
    taken and not yet accepted; ``confirm_timeout`` is milliseconds; the files are paths, empty where there is none."""

    bootstrap_servers: str = "127.0.0.1:9092"
    group: str = "postdate"
    window: int = 2000
    confirm_timeout: int = 30_000
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    compression: Compression = "none"
    partitioner: Partitioner = "murmur2"
    timestamp: Timestamp = "release"


def rules_of(settings: Kafka) -> KafkaRules:
    """The part of the settings that is the adapter's."""
    given = {one.name: getattr(settings, one.name) for one in fields(KafkaRules)}
    return KafkaRules(**{**given, "sasl_password": settings.sasl_password.get_secret_value()})
