"""Turns errors of pika, TLS and the network into one fact and one piece of advice.

No text ends with a stop: callers join them with others.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pika
from pika.credentials import ExternalCredentials
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ChannelClosedByBroker,
    ConnectionClosed,
    IncompatibleProtocolError,
    StreamLostError,
)

from adapters.rabbitmq.refusals import ACCESS_REFUSED, no_right
from bridge.core.errors import BrokerUnavailable, Refused

#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH; then not yet valid and expired.
_OTHER_NAME, _OUT_OF_TIME = (62, 64), (9, 10)
#: Texts of a connection that the broker closed before postdate had read its TLS alert.
_HUNG_UP = ("EOF occurred", "Connection reset", "Broken pipe")
#: How pika writes an error of the system into its own.
_OF_SYSTEM = re.compile(r"\b\w+Error\((\d+), ")
#: How pika says that the server accepts a connection and then sends nothing.
_MUTE = "Timeout while setting up AMQP"
_NO_HEARTBEAT = "missed heartbeats"
_ALERT = re.compile(r"ALERT_([A-Z_]+)")


def sentence(
    error: BaseException, wanted: pika.ConnectionParameters | None = None, connected_before: bool = False
) -> str:
    """Describe an error; with ``wanted``, as a failure to connect with these parameters.

    ``connected_before``: they worked, so a server that hangs up speaks AMQP.
    """
    if isinstance(error, (ConnectionClosed, ChannelClosed)):
        what = "connection" if isinstance(error, ConnectionClosed) else "channel"
        return f"RabbitMQ closed the {what}: {error.reply_code} {error.reply_text}"
    cause = _cause(error)
    if wanted is not None:
        return _not_opened(cause, wanted, connected_before)
    return _refused_login(str(cause), None) or f"RabbitMQ does not answer ({_plain(cause)})"


@contextmanager
def broker_errors() -> Iterator[None]:
    """Translate errors of pika and of the network: a missing right into ``Refused``, any other into
    ``BrokerUnavailable``."""
    try:
        yield
    except (AMQPError, OSError) as error:
        if isinstance(error, ChannelClosedByBroker) and error.reply_code == ACCESS_REFUSED:
            raise Refused(no_right(error.reply_text)) from error
        raise BrokerUnavailable(sentence(error)) from error


def of_all_hosts(troubles: Sequence[str]) -> str:
    """Join the errors of all hosts that were tried. Equal ones appear once."""
    several = list(dict.fromkeys(troubles))
    return several[0] if len(several) == 1 else f"no host of rabbitmq.url can be used: {'. '.join(several)}"


def of_files(names: str, error: OSError) -> str:
    """Describe TLS files that cannot be used."""
    reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else _plain(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key in rabbitmq.key_file does not fit the certificate in rabbitmq.cert_file. Give both of one pair"
    return f"{names} cannot be used ({reason.lower().replace('_', ' ')}). It must be a PEM file without a password"


def _cause(error: BaseException) -> BaseException:
    """Return the innermost cause of an error of pika's."""
    causes = [error]
    for inner in getattr(error, "args", ()):
        if isinstance(inner, BaseException):
            causes.append(inner)
    last = causes[-1]
    for nested in getattr(last, "exceptions", ()):
        last = nested
    cause = last.__cause__ or last
    while getattr(cause, "exception", None) is not None:
        cause = cause.exception  # type: ignore[attr-defined]
    return cause


def _plain(cause: BaseException) -> str:
    """Return the text of an error without numbers and tuples."""
    if isinstance(cause, OSError) and cause.errno and cause.strerror:
        return os.strerror(cause.errno) if cause.errno > 0 and not isinstance(cause, ssl.SSLError) else cause.strerror
    if _NO_HEARTBEAT in str(cause):
        return "no heartbeat from it"
    if found := _OF_SYSTEM.search(str(cause)):
        return os.strerror(int(found[1]))
    return str(cause) or type(cause).__name__


def _not_opened(cause: BaseException, wanted: pika.ConnectionParameters, connected_before: bool) -> str:
    """Describe a failure to connect."""
    address, tls, text = f"{wanted.host}:{wanted.port}", wanted.ssl_options is not None, str(cause)
    if isinstance(cause, AuthenticationError) and text == wanted.credentials.TYPE:
        plugin = " and enable the plugin rabbitmq_auth_mechanism_ssl" if text == "EXTERNAL" else ""
        return f"RabbitMQ does not offer the login {text}. Add it to auth_mechanisms in rabbitmq.conf{plugin}"
    if known := _refused_login(text, wanted):
        return known
    if tls and (known := _of_tls(cause, address)):
        return known
    if _MUTE in text:
        return f"RabbitMQ does not answer at {address} (no answer to a new connection). It is frozen or starting"
    if "AMQP handshake" in text or isinstance(
        cause, (IncompatibleProtocolError, StreamLostError, ConnectionResetError)
    ):
        mute = "Timeout" in text
        if connected_before or mute:
            reason = "no answer to a new connection" if mute else "it closes new connections at once"
            other = "a proxy hangs up" if connected_before else "rabbitmq.url names another server"
            return f"RabbitMQ does not answer at {address} ({reason}). It is frozen or starting, or {other}"
        hint = "set rabbitmq.cert_file if it wants a client certificate" if tls else "use amqps:// if it wants TLS"
        return f"the server at {address} does not speak AMQP. Correct rabbitmq.url, or {hint}"
    return f"RabbitMQ does not answer at {address} ({_plain(cause)}). Start it, or correct rabbitmq.url"


def _of_tls(cause: BaseException, address: str) -> str | None:
    """Describe a TLS failure; None for another one.

    The broker refuses a client certificate with an alert after the handshake, and pika passes that on as text alone.
    """
    text = str(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _of_certificate(cause.verify_code, cause.verify_message.rstrip("."), address)
    if alert := _ALERT.search(text):
        return _of_alert(alert[1], address)
    if isinstance(cause, (IncompatibleProtocolError, StreamLostError)) and any(sign in text for sign in _HUNG_UP):
        return (
            f"RabbitMQ at {address} hangs up after the TLS handshake. Read its log: it may want another client "
            "certificate (rabbitmq.cert_file, rabbitmq.key_file)"
        )
    if isinstance(cause, ssl.SSLError) or "setting up transport" in text:
        return f"the server at {address} does not speak TLS. Correct rabbitmq.url: amqp:// is without TLS"
    return None


def _of_certificate(code: int, reason: str, address: str) -> str:
    """Describe the broker's certificate. ``code`` and ``reason`` are OpenSSL's."""
    if code in _OTHER_NAME:
        return (
            f"the certificate of RabbitMQ at {address} is for another host ({reason}). Correct the host in "
            "rabbitmq.url, or give RabbitMQ a certificate for that host"
        )
    if code in _OUT_OF_TIME:
        return f"the certificate of RabbitMQ at {address} is not valid now ({reason}). Renew it, or correct the clock"
    return f"RabbitMQ at {address} shows a certificate that is not trusted ({reason}). Set rabbitmq.ca_file"


def _of_alert(alert: str, address: str) -> str:
    """Describe a TLS alert of the broker. ``alert`` is its name in OpenSSL."""
    reason = alert.lower().replace("_", " ")
    if alert in ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE"):
        return f"RabbitMQ at {address} wants a client certificate ({reason}). Set rabbitmq.cert_file and key_file"
    if alert in ("UNKNOWN_CA", "UNKNOWN_CERTIFICATE_AUTHORITY"):
        return (
            f"RabbitMQ at {address} does not trust the certificate in rabbitmq.cert_file ({reason}). Have it signed "
            "by an authority in RabbitMQ's ssl_options.cacertfile"
        )
    if "CERTIFICATE" in alert:
        return f"RabbitMQ at {address} refuses the certificate in rabbitmq.cert_file ({reason}). Renew it"
    return (
        f"RabbitMQ at {address} ends the TLS handshake ({reason}). Compare its ssl_options with this machine's OpenSSL"
    )


def _refused_login(text: str, wanted: pika.ConnectionParameters | None) -> str | None:
    """Describe a wrong login or virtual host; None for another error."""
    if "Login was refused" in text:
        if wanted is not None and isinstance(wanted.credentials, ExternalCredentials):
            return "RabbitMQ has no user of the name in rabbitmq.cert_file. Its log has the name. Create that user"
        if wanted is not None and not wanted.credentials.username:
            return "RabbitMQ refuses the token. Its log says why: audience, signature, scopes or expiry"
        return "RabbitMQ refuses the user or the password. Correct rabbitmq.url or rabbitmq.password"
    found = re.search(r"NOT_ALLOWED - (.*?)['\")]*$", text)
    token = wanted is not None and not getattr(wanted.credentials, "username", "-")
    where = "rabbitmq.oauth_scope, or the end of rabbitmq.url" if token else "the end of rabbitmq.url"
    return f"RabbitMQ does not open that virtual host ({found[1]}). Correct {where}" if found else None


def silent(queue: str) -> str:
    """Describe a queue on which RabbitMQ does not confirm what is published to it."""
    return (
        f"the queue {queue} takes no messages in: RabbitMQ does not answer for it. Most of its nodes may be down. Run "
        "`rabbitmqctl list_queues name leader members online`"
    )


def crashed(queue: str) -> str:
    """Describe a queue whose process is gone."""
    return (
        f"the queue {queue} takes no messages in: it has crashed. Read RabbitMQ's log for the reason, and restart the "
        "node that `rabbitmqctl list_queues name state leader` shows"
    )


def refuses(queue: str) -> str:
    """Describe a queue that refuses what is published to it."""
    return (
        f"the queue {queue} refuses messages, and producers without confirms lose them. It is at a length limit, or it "
        "has crashed. Run `rabbitmqctl list_queues name state messages policy`"
    )


def full(queue: str, ready: int, limit: int) -> str:
    """Describe a queue at its length limit."""
    return (
        f"the queue {queue} refuses messages, and producers without confirms lose them: it holds {ready}, and its "
        f"limit is {limit}. Find out why it is not emptied, or change the policy that limits it"
    )


def no_answer(queue: str) -> str:
    """Describe a queue on which RabbitMQ does not answer basic.consume."""
    return (
        f"nothing is taken from the queue {queue}: RabbitMQ does not answer for it. The queue may have no leader. Run "
        "`rabbitmqctl list_queues name state leader`"
    )
