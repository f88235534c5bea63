"""Python files as they were parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHIPPED = sorted(file for folder in ("bridge", "adapters") for file in (ROOT / folder).rglob("*.py"))


@cache
def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(read(file))


@cache
def _by_kind(tree: ast.AST) -> dict[type, list[Any]]:
    found: dict[type, list[Any]] = {}
    for node in ast.walk(tree):
        found.setdefault(type(node), []).append(node)
    return found


def walked(tree: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
    """Return the nodes of a file, or of a part of it, that are of these kinds."""
    return [node for kind in kinds for node in _by_kind(tree).get(kind, ())]


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()
