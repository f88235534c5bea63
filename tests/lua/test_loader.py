"""The script loader: includes come once, dependencies first, and never in a circle."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha1
from pathlib import Path

import pytest

from adapters.redis.scripts import LUA, BrokenInclude, flatten, scripts


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / f"{name}.lua"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_script_without_includes_is_unchanged(tmp_path: Path) -> None:
    write(tmp_path, {"moves/a": "#!lua\n-- what it does\nreturn 1\n"})
    assert flatten("moves/a", tmp_path) == "#!lua\n-- what it does\nreturn 1\n"


def test_an_include_comes_before_its_user_and_the_shebang_stays_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "moves/a": "#!lua flags=allow-oom\n--- @include include/x\nreturn x()\n",
            "include/x": "local function x() return 1 end\n",
        },
    )
    assert flatten("moves/a", tmp_path) == "#!lua flags=allow-oom\nlocal function x() return 1 end\nreturn x()\n"


def test_nested_includes_come_dependencies_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "moves/a": "--- @include include/top\n--- @include include/other\nbody\n",
            "include/top": "--- @include include/bottom\ntop\n",
            "include/bottom": "bottom\n",
            "include/other": "other\n",
        },
    )
    assert flatten("moves/a", tmp_path) == "bottom\ntop\nother\nbody\n"


def test_an_include_of_two_users_comes_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "moves/a": "--- @include include/x\n--- @include include/y\n--- @include include/x\nbody\n",
            "include/x": "--- @include include/z\nx\n",
            "include/y": "--- @include include/z\ny\n",
            "include/z": "z\n",
        },
    )
    assert flatten("moves/a", tmp_path) == "z\nx\ny\nbody\n"


def test_an_indented_include_stands_in_its_block_without_what_the_script_has(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "moves/a": "--- @include include/z\nif rare then\n  --- @include include/x\n  x()\nend\n",
            "include/x": "--- @include include/y\n--- @include include/z\nx\n",
            "include/y": "y\n",
            "include/z": "z\n",
        },
    )
    assert flatten("moves/a", tmp_path) == "z\nif rare then\ny\nx\n  x()\nend\n"


def test_a_circle_is_an_error_that_names_its_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "moves/a": "--- @include include/x\n",
            "include/x": "--- @include include/y\n",
            "include/y": "--- @include include/x\n",
        },
    )
    with pytest.raises(BrokenInclude, match="moves/a includes include/x includes include/y includes include/x"):
        flatten("moves/a", tmp_path)


def test_a_file_that_includes_itself_is_a_circle(tmp_path: Path) -> None:
    write(tmp_path, {"moves/a": "--- @include include/x\n", "include/x": "--- @include include/x\n"})
    with pytest.raises(BrokenInclude, match="include/x includes include/x"):
        flatten("moves/a", tmp_path)


def test_a_missing_include_is_an_error_that_names_its_user(tmp_path: Path) -> None:
    write(tmp_path, {"moves/a": "--- @include include/x\n", "include/x": "--- @include include/nowhere\n"})
    with pytest.raises(BrokenInclude, match="include/x includes include/nowhere, which does not exist"):
        flatten("moves/a", tmp_path)


def test_every_script_is_loaded_with_the_sha_that_redis_computes() -> None:
    files = {file.stem for file in LUA.glob("*/*.lua") if file.parent.name != "include"}
    assert scripts().keys() == files
    for name, script in scripts().items():
        assert script.name == name
        assert script.sha == sha1(script.text.encode(), usedforsecurity=False).hexdigest()
        assert script.text.startswith("#!lua")
        assert "@include" not in script.text


def test_no_two_scripts_share_a_name() -> None:
    files = [file.stem for file in LUA.glob("*/*.lua") if file.parent.name != "include"]
    assert len(files) == len(set(files))


@pytest.mark.slow
def test_scripts_are_read_as_utf8_whatever_the_locale() -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", "from adapters.redis.scripts import scripts; scripts()"]
    subprocess.run(command, env=os.environ | locale, check=True)
