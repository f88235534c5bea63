"""Secrets in files: read again at each use, and found by a reload."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from adapters.kafka.client import new_producer
from adapters.rabbitmq.connection import addresses
from adapters.redis.connect import Login, SentinelLogin
from bridge.settings import Settings, load
from bridge.settings.live import Changes, changes, with_live


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("first\n")
    return file


def settings(secret: Path, *names: str, file: str = "") -> Settings:
    config = secret.with_name("postdate.toml")
    config.write_text(file)
    return load(config, {f"POSTDATE_{name}_FILE": str(secret) for name in names})


def test_a_secret_follows_its_file_also_in_another_process(secret: Path) -> None:
    found = settings(secret, "REDIS__PASSWORD").redis.password
    handed = pickle.loads(pickle.dumps(found))
    secret.write_text("second\n")
    assert (found.get_secret_value(), handed.get_secret_value()) == ("second", "second")
    assert "second" not in repr(found)


@pytest.mark.parametrize("content", ["", "\n", "\udcff", None])
def test_while_the_file_cannot_be_used_the_last_secret_counts(secret: Path, content: str | None) -> None:
    found = settings(secret, "REDIS__PASSWORD").redis.password
    secret.write_text("second")
    assert found.get_secret_value() == "second"
    if content is None:
        secret.unlink()
    else:
        secret.write_text(content, errors="surrogateescape")
    assert found.get_secret_value() == "second"


def test_a_url_that_the_setting_cannot_have_is_not_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("amqp://postdate:old@rabbit-1")
    rabbitmq = settings(file, "RABBITMQ__URL").rabbitmq
    file.write_text("amqp://postdate:new@rabbit-1")
    assert [url.credentials.password for url in addresses(rabbitmq)] == ["new"]
    file.write_text("not a URL")
    assert [url.credentials.password for url in addresses(rabbitmq)] == ["new"]


async def test_each_connection_reads_its_password_again(secret: Path) -> None:
    def change() -> None:
        secret.write_text("second")

    table = '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_username = "u"\n'
    loaded = settings(secret, "REDIS__PASSWORD", "RABBITMQ__PASSWORD", "KAFKA__SASL_PASSWORD", file=table)
    login, producer = Login(loaded.redis), new_producer(loaded.kafka)
    change()
    assert await login.get_credentials_async() == ("second",)
    assert addresses(loaded.rabbitmq)[0].credentials.password == "second"
    assert producer.client._sasl_plain_password == "second"
    await producer.stop()


async def test_redis_and_its_sentinels_have_passwords_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis+sentinel://postdate:a%2Fb@s1/mymaster?sentinel_password=watch")
    redis = settings(file, "REDIS__URL").redis
    assert await Login(redis).get_credentials_async() == ("postdate", "a/b")
    assert await SentinelLogin(redis).get_credentials_async() == ("watch",)
    assert await Login(Settings().redis).get_credentials_async() == ()
    assert await SentinelLogin(Settings().redis).get_credentials_async() == ()


def test_a_reload_takes_over_a_secret_that_changed_in_its_file(secret: Path) -> None:
    old = settings(secret, "REDIS__PASSWORD")
    secret.write_text("second")
    new = settings(secret, "REDIS__PASSWORD")
    assert changes(old, new).live == ("redis.password",)
    assert changes(old, new).restart == ()
    assert changes(with_live(old, new), new) == Changes((), ())


def test_a_reload_takes_over_a_password_and_no_other_host_from_a_url_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:a@redis-1")
    old = settings(file, "REDIS__URL")
    file.write_text("redis://:b@redis-1")
    assert changes(old, settings(file, "REDIS__URL")).live == ("redis.url",)
    file.write_text("redis://:b@redis-2")
    assert changes(old, settings(file, "REDIS__URL")).restart == ("redis.url",)


def test_a_secret_from_another_file_needs_a_restart_except_a_token(tmp_path: Path, secret: Path) -> None:
    other = tmp_path / "other"
    other.write_text("first")
    assert changes(settings(secret, "REDIS__PASSWORD"), settings(other, "REDIS__PASSWORD")).restart
    other.write_text("a-token-of-sixteen")
    before = settings(other, "AUTH__ADMIN_TOKEN")
    other.write_text("another-token-of-16")
    found = changes(before, settings(other, "AUTH__ADMIN_TOKEN"))
    assert (found.live, found.concern_http) == (("auth.admin_token",), True)
