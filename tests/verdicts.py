"""What `postdate check` and `postdate doctor` answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.cli import run_command


def answers(command: str, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The sentences of `check` or `doctor`, by level."""
    capsys.readouterr()
    run_command([command, "--config", str(file), "-o", "json"])
    found: dict[str, list[str]] = {"OK": [], "WARN": [], "FAIL": []}
    for row in json.loads(capsys.readouterr().out):
        found[row["level"]].append(f"{row['subject']}: {row['text']}")
    return found


def has(sentences: list[str], words: str) -> bool:
    return any(words in sentence for sentence in sentences)
