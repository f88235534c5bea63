"""The bridge for one run: its settings file says just what the settings do, and its use of the machine is known."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from bridge.lab.trial.config import ROUTE, as_toml, new_names, trial_settings
from bridge.lab.trial.usage import command_of, cpu_s, listening_pid, rss_bytes
from bridge.settings import Settings, load
from bridge.settings.plan import store_of


def read_back(settings: Settings, folder: Path) -> Settings:
    file = folder / "postdate.toml"
    file.write_text(as_toml(settings), encoding="utf-8")
    return load(file, {})


def test_the_file_is_read_back_to_the_same_settings_secrets_included(tmp_path: Path) -> None:
    users = load(
        None,
        {},
        {
            "redis.password": 'p"a\\s\x7f\ns ü',
            "redis.shards": 3,
            "retry.factor": 1.5,
            "dispatch.pace": "2ms",
            "limits.batch_bytes": "1MiB",
            "headers.levels": "1s,90s",
            "bridge.setup": False,
            "routes.mine.intercept": "mine.delay",
            "routes.mine.deliver_to": "mine",
        },
    )
    own = trial_settings(users, new_names("test"), bridge={"workers": 1})
    again = read_back(own, tmp_path)
    assert again.model_dump() == own.model_dump()
    assert again.redis.password == SecretStr('p"a\\s\x7f\ns ü')
    assert again.headers.levels == (1000, 90_000)


def test_the_run_has_one_route_and_names_and_keys_of_its_own() -> None:
    first, second = new_names("demo"), new_names("demo")
    assert not set(vars(first).values()) & set(vars(second).values())
    own = trial_settings(load(None, {}, {"bridge.setup": False}), first)
    assert list(own.routes) == [ROUTE]
    assert own.redis.key_prefix == first.prefix
    assert own.bridge.setup


def test_on_kafka_the_run_has_topics_and_a_group_of_its_own(tmp_path: Path) -> None:
    names = new_names("bench", "kafka")
    own = read_back(trial_settings(load(None, {}, {"kafka.group": "users"}), names, broker="kafka"), tmp_path)
    assert own.broker == "kafka"
    assert (own.routes[ROUTE].intercept, own.routes[ROUTE].deliver_to) == (names.front, names.target)
    assert own.kafka.group == names.prefix
    assert store_of(own, "kafka").settings.redis.key_prefix.startswith(names.prefix)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_process_has_memory_and_has_used_the_processor_and_a_gone_one_has_neither() -> None:
    memory, used = rss_bytes(os.getpid()), cpu_s(os.getpid())
    assert memory is not None
    assert memory > 1_000_000
    assert used is not None
    assert used > 0
    assert rss_bytes(2**22 + 1) is None
    assert cpu_s(2**22 + 1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_the_process_behind_a_port_is_found_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pid(port) == os.getpid()
    assert listening_pid(port) is None
    assert command_of(os.getpid()) != ""
    assert command_of(2**22 + 1) == ""
