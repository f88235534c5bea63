"""Routes in files of their own: one file a team."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.core.errors import SettingsError
from bridge.settings import Settings, load
from bridge.settings.live import changes

ROUTE = '[routes.{0}]\nintercept = "{0}.delay"\ndeliver_to = "{0}"\n'


@pytest.fixture
def main(tmp_path: Path) -> Path:
    (tmp_path / "routes.d").mkdir()
    file = tmp_path / "postdate.toml"
    file.write_text('include = "routes.d/*.toml"\n[bridge]\nname = "all"\n' + ROUTE.format("own"))
    return file


def team(main: Path, name: str, text: str) -> Path:
    file = main.parent / "routes.d" / f"{name}.toml"
    file.write_text(text)
    return file


def mistakes(main: Path) -> list[str]:
    with pytest.raises(SettingsError) as found:
        load(main, {})
    return str(found.value).splitlines()


def test_200_routes_in_50_files_are_read(main: Path) -> None:
    for number in range(50):
        team(main, f"team{number}", "".join(ROUTE.format(f"r{number}_{part}") for part in range(4)))
    began = time.process_time()
    settings = load(main, {})
    print(f"read in {time.process_time() - began:.3f} s")
    assert len(settings.routes) == 201
    assert settings.routes["r49_3"].intercept == "r49_3.delay"
    assert settings.origin.sources["routes.r49_3.intercept"] == str(main.parent / "routes.d" / "team49.toml")


def test_the_environment_still_overrides_an_included_route(main: Path) -> None:
    team(main, "a", ROUTE.format("a"))
    assert load(main, {"POSTDATE_ROUTES__A__DELIVER_TO": "other"}).routes["a"].target == "other"


def test_a_mistake_names_its_file(main: Path) -> None:
    broken, wrong = team(main, "a", "[routes.a\n"), team(main, "b", ROUTE.format("b") + 'mdoe = "redis"\n')
    other = team(main, "c", '[redis]\nurl = "redis://127.0.0.1"\n' + ROUTE.format("own"))
    clash = team(main, "d", ROUTE.format("d").replace("d.delay", "own.delay"))
    found = mistakes(main)
    assert any(line.startswith(f"{broken}: line 1, column 10 is not TOML") for line in found)
    assert any("routes.b.mdoe" in line and str(wrong) in line for line in found)
    assert f"{other}: redis does not belong in an included file. Move it to {main}" in found
    assert f"{other}: routes.own is also in {main}" in found
    assert any(line.startswith(f"{clash}: routes.d.intercept") for line in found), found


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ('"routes.toml"', "include names a file that does not exist"),
        ("3", 'include must be a pattern in quotes, such as "routes.d/*.toml"'),
    ],
)
def test_a_wrong_include_is_named(main: Path, include: str, words: str) -> None:
    main.write_text(f"include = {include}\n")
    assert mistakes(main) == [f"{main}: {words}"]


def test_a_pattern_may_match_nothing(main: Path) -> None:
    assert list(load(main, {}).routes) == ["own"]


def test_a_reload_finds_routes_that_came_and_went(main: Path) -> None:
    def read() -> Settings:
        return load(main, {})

    team(main, "b", ROUTE.format("b"))
    before = read()
    (main.parent / "routes.d" / "b.toml").unlink()
    team(main, "c", ROUTE.format("c"))
    found = changes(before, read())
    assert (found.added, found.removed, found.restart) == (("c",), ("b",), ())
