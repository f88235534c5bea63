"""The whole way with TLS to Redis: a certificate expires under load, and is renewed, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge_process import Tables
from tests.chaos.conftest import OpenLedger, OpenLine
from tests.chaos.recovery import settled
from tests.devstack.certificates import Authority, Signed
from tests.devstack.fixtures import need
from tests.devstack.redis import Redis
from tests.devstack.service import free_ports, wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long]

IN_FLIGHT, RATE = 200, 500.0
#: For how many days each certificate is valid.
DAYS = {"good": "30", "expired": "-1", "renewed": "30"}


def show(server: Redis, signed: Signed) -> None:
    """The server shows this certificate from now on, and every connection has to be made again."""
    server.command("CONFIG", "SET", "tls-cert-file", str(signed.cert), "tls-key-file", str(signed.key))
    for kind in ("normal", "pubsub"):
        server.command("CLIENT", "KILL", "TYPE", kind)


def test_a_certificate_that_expires_and_is_renewed_under_load_loses_nothing(
    open_line: OpenLine, open_ledger: OpenLedger, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "ca")
    good, expired, renewed = (authority.sign(name, days=days) for name, days in DAYS.items())
    (port,) = free_ports(1)
    tls = {"tls-port": str(port), "tls-ca-cert-file": str(authority.ca), "tls-auth-clients": "no"}
    tls |= {"tls-cert-file": str(good.cert), "tls-key-file": str(good.key)}
    with need(lambda: Redis.launch_process(tls)) as server:
        redis = {"timeout": "1s", "ca_file": str(authority.ca), "durability": "none"}
        settings: Tables = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}, "redis": redis}
        line = open_line(settings, store_url=f"rediss://127.0.0.1:{port}")
        ledger = open_ledger(line)
        bridge = line.bridge().start()
        ledger.produce(RATE, (0, 1500))
        ledger.wait_arrivals(200)
        show(server, expired)
        bridge.wait_log("a certificate that is not trusted (certificate has expired)")
        show(server, renewed)
        ledger.wait_arrivals(500, 40)
        ledger.stop_producing()
        wait_for(bridge.is_ready, "all is well again")
        settled(line, ledger, 60).assert_kept(copies_max=3 * IN_FLIGHT)
