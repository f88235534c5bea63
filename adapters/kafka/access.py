"""Security settings for a cluster, and the reason why it refuses a connection."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.metadata import MetadataRequest

from adapters.kafka.delivered import marker_topic
from adapters.kafka.tokens import NoToken, token_provider
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.settings import Kafka

_ASK_MS = 3000
_NO_ANSWER = (NodeNotReadyError, RequestTimedOutError, KafkaTimeoutError)
_NO_RIGHT = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


def security(rules: Kafka) -> dict[str, Any]:
    wanted: dict[str, Any] = {"security_protocol": rules.security_protocol}
    if rules.security_protocol in ("SSL", "SASL_SSL"):
        wanted["ssl_context"] = create_ssl_context(  # which verifies the broker's certificate and host name
            cafile=rules.ca_file or None, certfile=rules.cert_file or None, keyfile=rules.key_file or None
        )
    if rules.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        wanted |= _login(rules)
    return wanted


def _login(rules: Kafka) -> dict[str, Any]:
    if rules.by_token:
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": token_provider(rules)}
    return {
        "sasl_mechanism": rules.sasl_mechanism,
        "sasl_plain_username": rules.sasl_username,
        "sasl_plain_password": rules.sasl_password.get_secret_value(),
    }


async def why_not(rules: Kafka) -> str:
    """Why a broker refuses the connection; empty if none is reachable or none refuses."""
    for host, port, _ in collect_hosts(rules.bootstrap_servers):
        try:
            found = await create_conn(host, port, request_timeout_ms=_ASK_MS, **security(rules))
            try:
                await found.send(MetadataRequest([]))
            finally:
                found.close()
        except (SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError, ssl.SSLError) as error:
            return sentence(error, rules)
        except (ConnectionResetError, KafkaConnectionError):
            return (
                f"{host}:{port} hangs up: it may want another kafka.security_protocol than {rules.security_protocol}, "
                "or a client certificate (kafka.cert_file)"
            )
        except (KafkaError, OSError):
            continue
    return ""


@contextmanager
def broker_errors(rules: Kafka) -> Iterator[None]:
    """Translate every error of aiokafka and of the network into ``BrokerUnavailable``.

    That includes a cancellation that no caller requested: aiokafka cancels its own tasks and then waits for them.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if _is_requested():
            raise
        raise BrokerUnavailable("aiokafka's client stopped by itself") from error
    except (KafkaError, OSError, ValueError, RuntimeError) as error:  # TimeoutError and ssl's errors are OSErrors
        raise BrokerUnavailable(sentence(error, rules)) from error


def _is_requested() -> bool:
    """Whether a caller cancelled the current task. Around ``asyncio.run`` there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is None or task.cancelling() > 0


@contextmanager
def trial_errors(rules: Kafka) -> Iterator[None]:
    """As ``broker_errors``, but a missing right raises ``Refused``. A trial of a minute does not wait until it is
    granted."""
    try:
        with broker_errors(rules):
            yield
    except BrokerUnavailable as error:
        if isinstance(error.__cause__, _NO_RIGHT):
            raise Refused(f"Kafka refuses access: {error}. Grant user '{rules.user}' the right") from error
        raise


def sentence(error: BaseException, rules: Kafka) -> str:
    """Describe an error for an operator."""
    where = rules.bootstrap_servers
    if isinstance(error, ssl.SSLError):
        return _of_tls(error, where)
    if isinstance(error, KafkaConnectionError):
        broker = re.search(r" at (\S+:\d+)", str(error))
        return f"the broker at {broker[1]} does not answer" if broker else f"no broker of {where} answers"
    if isinstance(error, TimeoutError):
        return f"a broker of {where} does not answer in time"
    if isinstance(error, GroupCoordinatorNotAvailableError):
        return f"no coordinator of the consumer group '{rules.group}' answers"
    return _of_rights(error, rules) or plain(error, where)


def plain(error: BaseException, where: str = "Kafka") -> str:
    """Describe any other error: first what an operator knows, behind it the text of aiokafka."""
    text = str(error).removesuffix(".") or type(error).__name__
    if not isinstance(error, _NO_ANSWER):
        return text
    node = re.search(r"node id ([\w-]+)", text)
    return f"{f'broker {node[1]}' if node else 'a broker'} of {where} does not answer ({text})"


def _of_tls(error: ssl.SSLError, where: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {where} is not trusted ({error.verify_message}). Check kafka.ca_file"
    why = error.reason or str(error)
    return f"no TLS with {where} ({why}). Check kafka.security_protocol"


def _of_rights(error: BaseException, rules: Kafka) -> str:
    where, mechanism, user = rules.bootstrap_servers, rules.sasl_mechanism, rules.user
    if isinstance(error, SaslAuthenticationFailed):
        if isinstance(error, NoToken):
            return str(error)
        if rules.by_token:
            return f"{where} refuses the token of '{user}'. Kafka's log says why: issuer, audience, signature or scope"
        return f"{where} does not let user '{user}' in by {mechanism}. The user is unknown, or the password is wrong"
    if isinstance(error, (UnsupportedSaslMechanismError, IllegalSaslStateError)):
        return f"{where} does not support {mechanism}. Check kafka.sasl_mechanism"
    if isinstance(error, GroupAuthorizationFailedError):
        return f"user '{user}' may not read as the consumer group '{rules.group}'. Grant Read on the group"
    if isinstance(error, TransactionalIdAuthorizationFailed):
        ids = marker_topic(rules.group)
        return (
            f"user '{user}' may not use the transactional ids '{ids}.*'. Grant Write and Describe on the transactional "
            f"ids with the prefix '{ids}'"
        )
    if isinstance(error, ClusterAuthorizationFailedError):
        return f"user '{user}' may write to no topic. Grant Write"
    return ""
