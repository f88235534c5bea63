"""Which server is fit for which durability: every combination, and the refusals."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from adapters.redis.durability import Server, ask, judge
from bridge.core.errors import StoreUnavailable, StoreUnfit

GOOD = Server("Redis", (8, 0), True, "everysec", "noeviction")
WANTED = ("always", "everysec", "replicas", "none")


def command(server: Server, wanted: str) -> str:
    """Return the command to wait with, "-" for none, or "unfit"."""
    try:
        wait = judge(server, wanted, 2, 700).wait
    except StoreUnfit:
        return "unfit"
    return str(wait.command[0]) if wait else "-"


@pytest.mark.parametrize(
    ("aof", "fsync", "always", "everysec"),
    [
        (True, "always", "-", "-"),
        (True, "everysec", "WAITAOF", "-"),
        (True, "no", "unfit", "unfit"),
        (True, None, "WAITAOF", "-"),
        (False, "always", "unfit", "unfit"),
        (False, "everysec", "unfit", "unfit"),
        (False, None, "unfit", "unfit"),
        (None, "always", "-", "-"),
        (None, "everysec", "WAITAOF", "-"),
        (None, "no", "unfit", "unfit"),
        (None, None, "WAITAOF", "-"),
    ],
)
def test_each_durability_waits_for_its_own_command_on_redis_8(
    aof: bool | None, fsync: str | None, always: str, everysec: str
) -> None:
    server = GOOD._replace(aof=aof, fsync=fsync)
    assert [command(server, wanted) for wanted in WANTED] == [always, everysec, "WAIT", "-"]


@pytest.mark.parametrize(
    "server",
    [
        GOOD._replace(version=(7, 0)),
        GOOD._replace(version=(7, 2)),  # from 7.2.2 on WAITAOF answers before the data is on disk
        GOOD._replace(version=(7, 4)),
        GOOD._replace(version=(9, 1), valkey=True),
    ],
)
@pytest.mark.parametrize("fsync", ["everysec", "no", None])
def test_a_server_whose_waitaof_cannot_be_trusted_must_sync_always(server: Server, fsync: str | None) -> None:
    assert command(server._replace(fsync=fsync), "always") == "unfit"
    assert command(server._replace(fsync="always"), "always") == "-"


@pytest.mark.parametrize(("policy", "wanted"), list(product(("allkeys-lru", "volatile-ttl"), WANTED)))
def test_an_evicting_server_is_unfit_with_every_durability(policy: str, wanted: str) -> None:
    with pytest.raises(StoreUnfit, match=f"Redis has maxmemory-policy {policy}, which deletes parked messages"):
        judge(GOOD._replace(policy=policy), wanted, 1, 700)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("version", [(6, 2), (5, 0), (2, 8)])
def test_an_old_server_is_unfit_with_every_durability(version: tuple[int, int], wanted: str) -> None:
    with pytest.raises(StoreUnfit, match=r"needs Redis 7.0"):
        judge(GOOD._replace(version=version), wanted, 1, 700)


def test_the_wait_for_replicas_has_the_configured_number_and_timeout() -> None:
    wait = judge(GOOD, "replicas", 2, 700).wait
    assert wait is not None
    assert wait.command == ("WAIT", 2, 700)
    assert wait.needed == 2


def test_the_wait_for_the_disk_has_the_configured_timeout() -> None:
    wait = judge(GOOD, "always", 2, 700).wait
    assert wait is not None
    assert wait.command == ("WAITAOF", 1, 0, 700)
    assert wait.needed == 1


@pytest.mark.parametrize(
    ("server", "wanted", "parts"),
    [
        (GOOD, "everysec", []),
        (GOOD._replace(fsync="always"), "always", []),
        (GOOD, "replicas", []),
        (GOOD._replace(replicas=1), "replicas", []),
        (GOOD._replace(replicas=0), "replicas", ["too few connected replicas: 0 of 1"]),
        (GOOD, "none", ["Parked messages are lost when Redis stops"]),
        (GOOD._replace(policy=None), "everysec", ["does not disclose its maxmemory-policy"]),
        (GOOD._replace(fsync=None), "everysec", ["is not checked"]),
        (
            GOOD._replace(aof=None, policy=None),
            "everysec",
            ["does not disclose its maxmemory-policy", "is not checked"],
        ),
    ],
)
def test_a_server_that_may_keep_less_than_configured_is_warned_of(
    server: Server, wanted: str, parts: list[str]
) -> None:
    warnings = judge(server, wanted, 1, 700).warnings
    assert len(warnings) == len(parts)
    assert all(part in warning for part, warning in zip(parts, warnings, strict=True))


@pytest.mark.parametrize("fsync", ["everysec", None])
def test_a_refusal_says_what_to_set(fsync: str | None) -> None:
    with pytest.raises(StoreUnfit) as refused:
        judge(GOOD._replace(version=(7, 4), fsync=fsync), "always", 1, 700)
    assert 'Set "appendfsync always" there' in str(refused.value)
    assert "None" not in str(refused.value)


@pytest.mark.parametrize("wanted", ["always", "everysec"])
def test_sentinel_with_no_min_replicas_to_write_is_warned_of(wanted: str) -> None:
    followed = GOOD._replace(sentinel=True, min_replicas=0)
    (warning,) = judge(followed, wanted, 1, 700).warnings
    assert warning.startswith(
        f'Redis has min-replicas-to-write 0. With redis.durability = "{wanted}", a failover by Sent'
    )
    assert judge(followed._replace(min_replicas=1), wanted, 1, 700).warnings == ()
    assert judge(followed._replace(min_replicas=None), wanted, 1, 700).warnings == ()
    assert judge(GOOD._replace(min_replicas=0), wanted, 1, 700).warnings == ()


def test_waiting_for_replicas_needs_no_min_replicas_to_write() -> None:
    assert judge(GOOD._replace(sentinel=True, min_replicas=0, replicas=2), "replicas", 1, 700).warnings == ()


def test_a_server_that_is_loading_its_data_is_waited_for_and_not_judged() -> None:
    """Redis turns its append-only file off while it reads it."""

    class Loading:
        connection_pool = None

        async def info(self, section: str) -> dict[str, object]:
            return {"redis_version": "7.0.15", "loading": 1, "aof_enabled": 0}

        async def config_get(self, name: str) -> dict[str, str]:
            return {name: "everysec"}

    client: Any = Loading()
    with pytest.raises(StoreUnavailable, match="Redis is loading its data"):
        asyncio.run(ask(client))
