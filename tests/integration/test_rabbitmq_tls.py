"""What a person is told when TLS with RabbitMQ fails, by each way that postdate connects: the reason, and where it is
mended."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from adapters.rabbitmq.connection import connect, open_link
from bridge.core.errors import BrokerUnavailable
from bridge.settings import RabbitMQ
from tests.devstack.certificates import Authority, Signed
from tests.devstack.fixtures import need

pytestmark = pytest.mark.slow

Open = Callable[[RabbitMQ], object]

WAYS: dict[str, Open] = {
    "run": lambda settings: asyncio.run(open_link(settings, "test")),
    "check": lambda settings: connect(settings, "test", 5),
}


def shake_hands(secured: ssl.SSLSocket) -> None:
    """And stay until the client goes: one that is still writing would not read why it was refused."""
    try:
        secured.do_handshake()
    except ssl.SSLError:
        while socket.socket.recv(secured, 1024):
            pass


@contextmanager
def server(signed: Signed, trusts: Path | None = None) -> Iterator[int]:
    """A server that does no more than TLS; with ``trusts`` it wants a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.cert, signed.key)
    if trusts is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(trusts)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    secured = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
                    with secured, suppress(OSError):
                        shake_hands(secured)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(5)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return need(lambda: Authority(tmp_path_factory.mktemp("tls")))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return need(lambda: Authority(tmp_path_factory.mktemp("foreign"), "foreign"))


@pytest.fixture(params=sorted(WAYS))
def said(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """``said(signed, ...)``: the sentence about a server with that certificate."""
    with ExitStack() as servers:

        def ask(signed: Signed, trusts: Path | None = None, **files: Path) -> str:
            port = servers.enter_context(server(signed, trusts))
            url = f"amqps://guest:guest@127.0.0.1:{port}/%2F"
            settings = RabbitMQ.model_validate({"url": url, **{name: str(file) for name, file in files.items()}})
            with pytest.raises(BrokerUnavailable) as caught:
                WAYS[request.param](settings)
            return str(caught.value)

        yield ask


def test_a_certificate_for_another_host_names_both(ours: Authority, said: Callable[..., str]) -> None:
    text = said(ours.sign("elsewhere", hosts="DNS:elsewhere"), ca_file=ours.ca)
    assert "is for another host (IP address mismatch, certificate is not valid for '127.0.0.1')" in text
    assert "Correct the host in rabbitmq.url" in text


def test_an_expired_certificate_is_called_expired(ours: Authority, said: Callable[..., str]) -> None:
    assert "is not valid now (certificate has expired). Renew it" in said(
        ours.sign("expired", days="-1"), ca_file=ours.ca
    )


def test_a_certificate_of_an_unknown_authority_leads_to_the_ca_file(
    ours: Authority, theirs: Authority, said: Callable[..., str]
) -> None:
    text = said(theirs.sign("server"), ca_file=ours.ca)
    assert "a certificate that is not trusted (unable to get local issuer certificate). Set rabbitmq.ca_file" in text


def test_a_missing_client_certificate_is_named(ours: Authority, said: Callable[..., str]) -> None:
    text = said(ours.sign("server"), trusts=ours.ca, ca_file=ours.ca)
    assert "wants a client certificate" in text
    assert "rabbitmq.cert_file" in text


def test_a_client_certificate_of_an_unknown_authority_is_named(
    ours: Authority, theirs: Authority, said: Callable[..., str]
) -> None:
    client = theirs.sign("client")
    text = said(ours.sign("server"), trusts=ours.ca, ca_file=ours.ca, cert_file=client.cert, key_file=client.key)
    assert "does not trust the certificate in rabbitmq.cert_file (unknown ca)" in text


def test_a_key_that_does_not_fit_its_certificate_is_named(
    ours: Authority, theirs: Authority, said: Callable[..., str]
) -> None:
    cert, key = ours.sign("client").cert, theirs.sign("client").key
    text = said(ours.sign("server"), trusts=ours.ca, ca_file=ours.ca, cert_file=cert, key_file=key)
    assert "the key in rabbitmq.key_file does not fit the certificate in rabbitmq.cert_file" in text
