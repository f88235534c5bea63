"""One Kafka node with TLS, passwords and access lists that deny by default.

Its plain listener is the tests' own door, through which everybody is the superuser; the others are the users'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.devstack import kafka_admin
from tests.devstack.certificates import Authority, Signed
from tests.devstack.kafka import ALONE, HEAP, Kafka, listening, ready_place
from tests.devstack.kafka_java import QUICK
from tests.devstack.oauth import Issuer
from tests.devstack.service import free_ports, new_folder

PASSWORD = "correct horse; battery staple"
#: Who may come with PLAIN; users of SCRAM are made by `add_user`.
PLAIN_USER = "plain-user"
#: How long a connection to ``short_url`` may live.
SESSION_MS = 3000

_LOGIN = "org.apache.kafka.common.security"
_SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


class SecureKafka(Kafka):
    """``urls`` are the addresses by security protocol; ``ca`` is whom its certificate is from, ``client`` a certificate
    that its listener ``SSL`` lets in. ``short_url`` lets in by SCRAM-SHA-512 and by tokens of ``issuer``, and ends each
    connection after ``SESSION_MS``, or when its token has expired."""

    urls: Mapping[str, str]
    ca: Path
    client: Signed
    short_url: str
    issuer: Issuer

    @classmethod
    def launch(cls) -> Self:
        place, folder = ready_place(), new_folder("kafka-certificates")
        authority = Authority(folder)
        issuer = Issuer(folder)
        port, controller_port, short_port, *ports = free_ports(6)
        urls = dict(zip(("SSL", "SASL_SSL", "SASL_PLAINTEXT"), (f"127.0.0.1:{port}" for port in ports), strict=True))
        plain = listening(port, controller_port)
        short_url = f"127.0.0.1:{short_port}"
        doors = ",".join(f"{protocol}://{url}" for protocol, url in {**urls, "SHORT": short_url}.items())
        settings = {
            **ALONE,
            **{name: f"{value},{doors}" for name, value in plain.items()},
            **_security(authority, authority.sign("broker")),
            **_short_sessions(issuer),
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        }
        may_read = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.jwks.as_uri()}"
        node = cls.in_place(place.command(HEAP, *QUICK, may_read), place.command(*QUICK), settings, port)
        node.urls, node.ca, node.client = urls, authority.ca, authority.sign("client")
        node.short_url, node.issuer = short_url, issuer
        return node.start_new()

    def close(self) -> None:
        """End it, and its token server."""
        super().close()
        self.issuer.close()

    def add_user(self, name: str, mechanism: str, password: str = PASSWORD) -> None:
        """Create a user for this mechanism and the common password, without any rights."""
        wanted = UserScramCredentialUpsertion(name, ScramCredentialInfo(_SCRAM[mechanism], 4096), password.encode())
        admin = kafka_admin.client(self.url)
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(kafka_admin.TIMEOUT_S)

    def allow(
        self, user: str, kind: ResourceType, name: str, operations: Iterable[AclOperation], prefixed: bool = False
    ) -> None:
        """Grant a user these operations on a topic, a group or an id, or on all that begin with ``name``."""
        admin = kafka_admin.client(self.url)
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        allow = AclPermissionType.ALLOW
        wanted = [AclBinding(kind, name, pattern, f"User:{user}", "*", operation, allow) for operation in operations]
        for done in admin.create_acls(wanted).values():
            done.result(kafka_admin.TIMEOUT_S)


def _security(authority: Authority, broker: Signed) -> dict[str, str]:
    return {
        "listener.security.protocol.map": ",".join(
            (
                "CONTROLLER:PLAINTEXT",
                "SHORT:SASL_PLAINTEXT",
                *(f"{protocol}:{protocol}" for protocol in ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")),
            )
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(broker.chain),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *_SCRAM)),
        **{
            f"listener.name.{door}.{name.lower()}.sasl.jaas.config": login
            for door in ("sasl_ssl", "sasl_plaintext")
            for name, login in _logins().items()
        },
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def _short_sessions(issuer: Issuer) -> dict[str, str]:
    """The listener SHORT. Kafka checks each token's signature, issuer, audience and expiry."""
    tokens = {
        "sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.server.callback.handler.class": f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "connections.max.reauth.ms": "3600000",
    }
    scram = {"sasl.jaas.config": _logins()["SCRAM-SHA-512"], "connections.max.reauth.ms": str(SESSION_MS)}
    own = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks.as_uri(),
        "sasl.oauthbearer.expected.issuer": issuer.url,
        "sasl.oauthbearer.expected.audience": issuer.audience,
        # Kafka tolerates half a minute by default. No session of a test would end.
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    return {
        **{f"listener.name.short.{name}": value for name, value in own.items()},
        **{f"listener.name.short.oauthbearer.{name}": value for name, value in tokens.items()},
        **{f"listener.name.short.scram-sha-512.{name}": value for name, value in scram.items()},
    }


def _logins() -> dict[str, str]:
    scram = f"{_LOGIN}.scram.ScramLoginModule required;"
    plain = f'{_LOGIN}.plain.PlainLoginModule required user_{PLAIN_USER}="{PASSWORD}";'
    return {"PLAIN": plain, **dict.fromkeys(_SCRAM, scram)}
