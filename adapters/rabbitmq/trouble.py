"""Errors of pika, of TLS and of the network, each in one sentence for a person."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence

import pika
from pika.exceptions import ChannelClosed, ConnectionClosed, IncompatibleProtocolError, StreamLostError

#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH; and what is too early or too late.
_OTHER_NAME, _OUT_OF_TIME = (62, 64), (9, 10)
#: An alert of the broker is lost where it closes the connection before we have read it.
_HUNG_UP = ("EOF occurred", "Connection reset", "Broken pipe")
_ALERT = re.compile(r"ALERT_([A-Z_]+)")


def sentence(error: BaseException, wanted: pika.ConnectionParameters | None = None) -> str:
    """One sentence about an error; with ``wanted`` about connecting with these parameters."""
    if isinstance(error, (ConnectionClosed, ChannelClosed)):
        what = "connection" if isinstance(error, ConnectionClosed) else "channel"
        return f"RabbitMQ closed the {what}: {error.reply_code} {error.reply_text}"
    cause = _cause(error)
    if wanted is not None:
        return _not_opened(cause, wanted)
    return _at_the_door(str(cause)) or f"RabbitMQ does not answer ({_plain(cause)})"


def of_all_hosts(troubles: Sequence[str]) -> str:
    """One sentence from those of all hosts that were tried."""
    several = list(dict.fromkeys(troubles))
    return several[0] if len(several) == 1 else f"no host of rabbitmq.url can be used: {'; '.join(several)}"


def of_files(names: str, error: OSError) -> str:
    """Why the files of TLS cannot be used."""
    reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else _plain(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key in rabbitmq.key_file does not fit the certificate in rabbitmq.cert_file: give both of one pair"
    return f"{names} cannot be used ({reason.lower().replace('_', ' ')}): it must be a PEM file without a password"


def _cause(error: BaseException) -> BaseException:
    """What is at the bottom of an error of pika's."""
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
    """The network's errors without numbers and tuples."""
    if isinstance(cause, OSError) and cause.errno and cause.strerror:
        return os.strerror(cause.errno) if cause.errno > 0 and not isinstance(cause, ssl.SSLError) else cause.strerror
    return str(cause) or type(cause).__name__


def _not_opened(cause: BaseException, wanted: pika.ConnectionParameters) -> str:
    """Why a connection did not come about."""
    place, tls, text = f"{wanted.host}:{wanted.port}", wanted.ssl_options is not None, str(cause)
    if known := _at_the_door(text):
        return known
    if tls and (known := _of_tls(cause, place)):
        return known
    if "AMQP handshake" in text or isinstance(
        cause, (IncompatibleProtocolError, StreamLostError, ConnectionResetError)
    ):
        hint = " (or it wants a client certificate: rabbitmq.cert_file)" if tls else " (or it wants TLS: amqps://)"
        return f"something answers at {place}, but it does not speak AMQP: see rabbitmq.url{hint}"
    return f"RabbitMQ does not answer at {place} ({_plain(cause)}): start it, or set rabbitmq.url"


def _of_tls(cause: BaseException, place: str) -> str | None:
    """Why TLS failed; None where it did not. What the broker refuses of a client certificate comes as an alert behind
    the handshake, and pika has it as text alone."""
    text = str(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _of_certificate(cause.verify_code, cause.verify_message.rstrip("."), place)
    if alert := _ALERT.search(text):
        return _of_alert(alert[1], place)
    if isinstance(cause, (IncompatibleProtocolError, StreamLostError)) and any(sign in text for sign in _HUNG_UP):
        return (
            f"RabbitMQ at {place} hangs up after the TLS handshake: it may want another client certificate, see its "
            "log, rabbitmq.cert_file and rabbitmq.key_file"
        )
    if isinstance(cause, ssl.SSLError) or "setting up transport" in text:
        return f"something answers at {place}, but it does not speak TLS: see rabbitmq.url, amqp:// is without TLS"
    return None


def _of_certificate(code: int, reason: str, place: str) -> str:
    """What is wrong with the broker's certificate. ``code`` and ``reason``: OpenSSL's."""
    if code in _OTHER_NAME:
        return (
            f"the certificate of RabbitMQ at {place} is for another host ({reason}): correct the host in rabbitmq.url, "
            "or give RabbitMQ a certificate for that host"
        )
    if code in _OUT_OF_TIME:
        return f"the certificate of RabbitMQ at {place} is not valid now ({reason}): renew it, or set the clock"
    return f"RabbitMQ at {place} shows a certificate that is not trusted ({reason}): see rabbitmq.ca_file"


def _of_alert(alert: str, place: str) -> str:
    """What the broker has against us. ``alert``: its name in OpenSSL."""
    reason = alert.lower().replace("_", " ")
    if alert in ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE"):
        return f"RabbitMQ at {place} wants a client certificate ({reason}): see rabbitmq.cert_file and key_file"
    if alert in ("UNKNOWN_CA", "UNKNOWN_CERTIFICATE_AUTHORITY"):
        return (
            f"RabbitMQ at {place} does not trust the certificate in rabbitmq.cert_file ({reason}): have it signed by "
            "an authority in RabbitMQ's ssl_options.cacertfile"
        )
    if "CERTIFICATE" in alert:
        return f"RabbitMQ at {place} refuses the certificate in rabbitmq.cert_file ({reason}): renew it"
    return f"RabbitMQ at {place} ends the TLS handshake ({reason}): compare its ssl_options with this machine's OpenSSL"


def _at_the_door(text: str) -> str | None:
    """The two answers that a person can mend in the settings, in words that say where."""
    if "Login was refused" in text:
        return "RabbitMQ refuses the user or the password: see rabbitmq.url and rabbitmq.password"
    found = re.search(r"NOT_ALLOWED - (.*?)['\")]*$", text)
    return f"RabbitMQ does not open that virtual host ({found[1]}): see the end of rabbitmq.url" if found else None


def no_answer(queue: str) -> str:
    """Sentence for a queue on which RabbitMQ does not answer basic.consume."""
    return (
        f"nothing is taken from the queue {queue}: RabbitMQ does not answer for it. It may have no leader: see "
        "`rabbitmqctl list_queues name state leader`"
    )
