"""A RabbitMQ that lets in by password, by the tokens of an OAuth server, and by client certificates."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.devstack import rabbitmq4
from tests.devstack.certificates import Authority, Signed
from tests.devstack.oauth import KEY_ID, Issuer
from tests.devstack.rabbitmq import RabbitMQ, find_place
from tests.devstack.service import free_ports, new_folder

PLUGINS = ("rabbitmq_auth_backend_oauth2", "rabbitmq_auth_mechanism_ssl", "rabbitmq_management")
AUDIENCE = "broker"
#: What a token must allow.
SCOPE = " ".join(f"{AUDIENCE}.{right}:*/*/*" for right in ("configure", "read", "write"))
CONF = """\
auth_backends.1 = rabbit_auth_backend_oauth2
auth_backends.2 = internal
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
auth_oauth2.resource_server_id = {audience}
auth_oauth2.default_key = {key_id}
auth_oauth2.signing_keys.{key_id} = {public}
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {ca}
ssl_options.certfile = {cert}
ssl_options.keyfile = {key}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
management.tcp.ip = 127.0.0.1
management.tcp.port = {api_port}
"""


class SecureRabbitMQ(NamedTuple):
    """``tls_url`` needs a certificate that ``authority`` signed; ``client`` is for the user ``postdate-client``."""

    broker: RabbitMQ
    issuer: Issuer
    authority: Authority
    client: Signed
    tls_url: str


def launch_secure(version: str) -> SecureRabbitMQ:
    """Start it."""
    if version == "4":
        place, folder = rabbitmq4.chroot_home()
    else:
        place, folder = find_place(), new_folder("rabbitmq")
    authority, issuer = Authority(folder), Issuer(folder, audience=AUDIENCE)
    broker, client = authority.sign("broker"), authority.sign("postdate-client")
    port, api_port = free_ports(2)

    def seen(file: Path) -> str:
        return f"{place.seen_inside(folder)}/{file.name}"

    conf = CONF.format(
        audience=AUDIENCE,
        key_id=KEY_ID,
        public=seen(issuer.public),
        port=port,
        api_port=api_port,
        ca=seen(authority.ca),
        cert=seen(broker.cert),
        key=seen(broker.key),
    )
    kind = rabbitmq4.RabbitMQ4 if version == "4" else RabbitMQ
    server = kind.in_place(place, folder, enabled=PLUGINS, conf=conf)
    server.management_url = f"http://127.0.0.1:{api_port}"
    return SecureRabbitMQ(server, issuer, authority, client, f"amqps://127.0.0.1:{port}/%2F")
