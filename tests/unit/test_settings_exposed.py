"""Warnings about files with passwords that every user of the machine can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.settings import exposed_files, load
from bridge.settings.warnings import _holds_password

REDIS = '[redis]\nurl = "redis://:hunter2@127.0.0.1/0"\n'


def settings_file(folder: Path, text: str, mode: int) -> Path:
    file = folder / "postdate.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_a_settings_file_with_a_password_that_others_can_read_causes_a_warning(
    tmp_path: Path, mode: int, warned: bool
) -> None:
    file = settings_file(tmp_path, REDIS, mode)
    said = list(exposed_files(load(file, {})))
    assert said == ([f"every user of this machine can read the secrets in {file}. Run: chmod o-r {file}"] * warned)
    assert "hunter2" not in str(said)


@pytest.mark.parametrize(
    "text", ["", '[redis]\nurl = "redis://127.0.0.1/0"\n', '[rabbitmq]\nurl = "amqp://guest:guest@127.0.0.1/%2F"\n']
)
def test_a_file_without_a_secret_may_be_read(tmp_path: Path, text: str) -> None:
    assert list(exposed_files(load(settings_file(tmp_path, text, 0o644), {}))) == []


def test_a_secret_file_causes_one_warning_and_the_environment_none(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    names = dict.fromkeys(("POSTDATE_REDIS__PASSWORD_FILE", "POSTDATE_RABBITMQ__PASSWORD_FILE"), str(secret))
    url = {"POSTDATE_RABBITMQ__URL": "amqp://user:hunter2@127.0.0.1"}
    (said,) = exposed_files(load(settings_file(tmp_path, "", 0o644), {**names, **url}))
    assert str(secret) in said


def test_a_file_that_no_longer_exists_is_skipped(tmp_path: Path) -> None:
    file = settings_file(tmp_path, REDIS, 0o644)
    settings = load(file, {})
    file.unlink()
    assert list(exposed_files(settings)) == []


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        ("", False),
        ("word", True),
        ("redis://h", False),
        ("redis://user@h", False),
        ("redis://user:p%40@h", True),
        ("redis://h?password=p", True),
        ("redis://h?timeout=1", False),
        ("amqp://u:p@a,b:5672,c/v", True),
        ("amqp://guest:guest@h", False),
    ],
)
def test_a_url_holds_a_password_or_not(value: str, holds: bool) -> None:
    assert _holds_password(value) is holds
