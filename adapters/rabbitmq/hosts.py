"""The hosts of ``rabbitmq.url``: pika's parameters for each, and plain connections to the first that answers."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit, urlunsplit

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from adapters.rabbitmq.trouble import of_all_hosts, of_files, sentence
from bridge.core.errors import BrokerUnavailable
from bridge.settings import RabbitMQ

_PATIENCE_S = 15
#: With other hosts to try, a frozen one, whose machine still accepts connections, must not take long.
_PATIENCE_OF_SEVERAL_S = 5


def parameters(settings: RabbitMQ, name: str) -> list[pika.ConnectionParameters]:
    """pika's parameters for each host, in the order of the URL; ``name`` is what the broker shows for the connection.

    The files of TLS are read anew each time, so that renewed certificates are used from the next connection on. Raises
    ``BrokerUnavailable`` for files that cannot be used.
    """
    found = addresses(settings)
    secure = is_secure(settings)
    context = tls_context(settings) if secure else None
    for one in found:
        one.heartbeat = settings.heartbeat // 1000
        one.blocked_connection_timeout = None
        one.socket_timeout = one.stack_timeout = _PATIENCE_S if len(found) == 1 else _PATIENCE_OF_SEVERAL_S
        one.client_properties = {"connection_name": name, "product": "postdate"}
        if context is not None:
            one.ssl_options = pika.SSLOptions(context, one.host)
    return list(found)


def addresses(settings: RabbitMQ) -> list[pika.URLParameters]:
    """Where each host is, and who we are there. pika cannot read a URL with several hosts, nor one that has a user and
    no password."""
    parts = urlsplit(settings.url.get_secret_value())
    password = settings.password.get_secret_value()
    who, at, hosts = parts.netloc.rpartition("@")
    if parts.username is not None and parts.password is None:
        who += ":"
    made = []
    for host in hosts.split(","):
        one = pika.URLParameters(urlunsplit(parts._replace(netloc=f"{who}{at}{host}")))
        if password:
            one.credentials = pika.PlainCredentials(one.credentials.username, password)
        made.append(one)
    return made


def is_secure(settings: RabbitMQ) -> bool:
    """Whether the connection is one with TLS."""
    return urlsplit(settings.url.get_secret_value()).scheme == "amqps"


def tls_context(settings: RabbitMQ) -> ssl.SSLContext:
    """What certificates we trust and show. Raises ``BrokerUnavailable``."""
    file = "rabbitmq.ca_file"
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            file = "rabbitmq.cert_file or key_file"
            # Without a password OpenSSL would ask for that of an encrypted key on the terminal, and wait.
            context.load_cert_chain(settings.cert_file, settings.key_file or None, password="")
    except OSError as error:
        raise BrokerUnavailable(of_files(file, error)) from error
    return context


def connect(settings: RabbitMQ, name: str, timeout_s: float, heartbeats: bool = True) -> pika.BlockingConnection:
    """A plain connection to the first host that answers, as any program has one. Blocking. Raises
    ``BrokerUnavailable``."""
    troubles = []
    for wanted in parameters(settings, name):
        wanted.socket_timeout = wanted.stack_timeout = timeout_s
        if not heartbeats:
            wanted.heartbeat = 0
        try:
            return pika.BlockingConnection(wanted)
        except (AMQPError, AMQPConnectorException, OSError) as error:
            troubles.append(sentence(error, wanted))
    raise BrokerUnavailable(of_all_hosts(troubles))
