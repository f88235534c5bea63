"""Python files as they were parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = sorted(file for folder in ("bridge", "adapters") for file in (ROOT / folder).rglob("*.py"))


@cache
def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(read(file))


@cache
def walked(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a file or of a part of it."""
    return tuple(ast.walk(tree))


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()
