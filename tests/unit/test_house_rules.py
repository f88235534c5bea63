"""The rules of the house that a reader would otherwise have to remember."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import ROOT, SHIPPED, name, parse, read, walked

MODULES = [*SHIPPED, *sorted((ROOT / "tests").rglob("*.py"))]
TEXTS = [*MODULES, *sorted((ROOT / "adapters").rglob("*.lua"))]

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
TEST_MODULE_LINES_MAX = 800
MAY_IMPORT_ADAPTERS = "bridge/app/brokers.py"
#: Imports inside functions: the lazy command table, and optional packages.
MAY_IMPORT_LATE = {"aws_msk_iam_sasl_signer", "matplotlib", "uvloop", "bridge.lab.compare_plots"}
#: The copied producers stand alone, so each has its own.
MAY_EXIST_TWICE = {"DelayProducer"}
#: The folders of ``bridge/``, from the ground up: each imports only from those before it.
FLOORS = "core delay parking settings telemetry desk pipeline process app operate lab http cli".split()  # noqa: SIM905
ADAPTERS_MAY_NOT = ("process", "app", "operate", "cli", "lab", "http")
#: What a broker's load generator and meter share with the instruments that run them.
LAB_WORDS = ("bridge.lab.load", "bridge.lab.ports")
DEFINITION = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Words that say nothing of what is behind them.
FORBIDDEN_NAMES = frozenset({"util", "utils", "common", "helper", "helpers", "manager", "misc"})
#: Names that hide what they are for. The tests and a few rooms still have all but the first.
HIDING_NAMES = frozenset({"one", "some", "told", "said", "made", "looked"})
HIDING_ROOMS = frozenset({"adapters/memory", "adapters/redis", "bridge/pipeline"})
#: Read as text: to parse all tests takes seconds.
BINDS_ONE = re.compile(r"\bfor (?:\w+, )*one(?:, \w+)* in |^ *\W?one(?:, \w+)*\W? = |[(,] ?one: ", re.MULTILINE)
#: A file name that stands in more rooms says nothing.
ROOMS_MAX = 2


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported anywhere in a file; of ``from package import name``, the name too."""
    for statement in walked(tree, ast.Import):
        yield from (alias.name for alias in statement.names)
    for node in walked(tree, ast.ImportFrom):
        assert not node.level, f"a relative import: {ast.unparse(node)}"
        yield node.module or ""
        yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module in ("bridge", "adapters"))


def defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every class and function, with its length in lines."""
    for node in walked(tree, *FUNCTIONS, ast.ClassDef):
        yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def words(identifier: str) -> set[str]:
    """The words of a name, in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def beneath(folder: str) -> list[Path]:
    return [file for file in SHIPPED if name(file).startswith(folder)]


def late_imports(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported inside a function."""
    if any(node.col_offset for node in walked(tree, ast.Import, ast.ImportFrom)):
        for node in walked(tree, *FUNCTIONS):
            yield from imported(ast.Module(node.body, []))


def test_one_file_of_bridge_imports_adapters() -> None:
    world = ("adapters", "aiokafka", "pika", "redis")
    foreign = {
        name(file): modules
        for file in beneath("bridge/")
        if name(file) != MAY_IMPORT_ADAPTERS
        and (modules := [module for module in imported(parse(file)) if module.partition(".")[0] in world])
    }
    assert foreign == {}


def test_imports_stand_at_the_top_except_those_of_optional_packages() -> None:
    late = {(name(file), module) for file in SHIPPED for module in late_imports(parse(file))}
    assert {place for place in late if not {place[1], place[1].partition(".")[0]} & MAY_IMPORT_LATE} == set()


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for file in SHIPPED:
        for node in walked(parse(file), ast.ClassDef):
            if node.name not in MAY_EXIST_TWICE:
                places.setdefault(node.name, []).append(name(file))
    assert {found: files for found, files in places.items() if len(files) > 1} == {}


def test_no_file_outside_the_settings_branches_on_a_broker() -> None:
    kinds = {"rabbitmq", "kafka"}
    branching = [
        name(file)
        for file in beneath("bridge/")
        if not name(file).startswith("bridge/settings/") and name(file) != MAY_IMPORT_ADAPTERS
        for node in walked(parse(file), ast.Compare)
        if any(
            isinstance(operand, ast.Constant) and operand.value in kinds for operand in (node.left, *node.comparators)
        )
    ]
    assert branching == []


def test_each_floor_imports_only_from_floors_below(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for file in beneath("bridge/"):
        parts = name(file).split("/")
        assert len(parts) > 2 or parts[1] == "__init__.py", f"{name(file)}: directly in bridge/ there is only the map"
        if len(parts) > 2:
            above = FLOORS[FLOORS.index(parts[1]) + 1 :]
            wrong += [(name(file), found) for found in house_imports(file) if found.split(".")[1] in above]
    with capsys.disabled():
        print(f"\nfloors of bridge/, from the ground up: {' < '.join(FLOORS)}")
    assert wrong == []


def test_adapters_know_the_floors_up_to_the_pipeline_and_the_labs_words() -> None:
    wrong = [
        (name(file), found)
        for file in beneath("adapters/")
        for found in house_imports(file)
        if found.split(".")[1] in ADAPTERS_MAY_NOT and found not in LAB_WORDS
    ]
    assert wrong == []


def house_imports(file: Path) -> list[str]:
    return [module for module in imported(parse(file)) if module.startswith("bridge.")]


def test_one_adapter_does_not_know_another() -> None:
    wrong = [
        (name(file), module)
        for file in beneath("adapters/")
        for module in imported(parse(file))
        if module.startswith("adapters.") and module.split(".")[1] != name(file).split("/")[1]
    ]
    assert wrong == []


def test_shipped_code_does_not_know_the_tests() -> None:
    tests = {"tests", "pytest", "hypothesis"}
    assert [name(file) for file in SHIPPED if tests & {m.partition(".")[0] for m in imported(parse(file))}] == []


def test_nothing_is_called_by_a_word_that_says_nothing() -> None:
    names = {found for file in MODULES for found in (file.stem, file.parent.name, *re.findall(DEFINITION, read(file)))}
    assert {found for found in names if words(found) & FORBIDDEN_NAMES} == set()


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Every name that a file gives: to variables, attributes, arguments and functions."""
    yield from (node.arg for node in walked(tree, ast.arg))
    yield from (node.id for node in walked(tree, ast.Name) if isinstance(node.ctx, ast.Store))
    yield from (node.attr for node in walked(tree, ast.Attribute) if isinstance(node.ctx, ast.Store))
    yield from (node.name for node in walked(tree, *FUNCTIONS))


def lines_with(word: str, text: str) -> Iterator[str]:
    """Yield the lines that have a word: a hundredth of them, where ``BINDS_ONE`` is slow."""
    for found in re.finditer(rf"{word}\b", text):
        yield text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]


def test_what_has_a_name_is_called_by_its_noun() -> None:
    files = [file for file in SHIPPED if "/".join(name(file).split("/")[:2]) not in HIDING_ROOMS]
    found = {f"{name(file)}:{bound}" for file in files for bound in bound_names(parse(file))}
    assert {place for place in found if place.partition(":")[2].strip("_") in HIDING_NAMES} == set()
    assert [name(file) for file in MODULES if any(map(BINDS_ONE.search, lines_with("one", read(file))))] == []


def test_a_file_name_stands_in_two_rooms_at_most() -> None:
    rooms = Counter(file.name for file in SHIPPED if file.name != "__init__.py")
    assert {found for found, number in rooms.items() if number > ROOMS_MAX} == set()


def test_functions_are_short() -> None:
    long = {}
    for file in SHIPPED:
        classes = {node.name for node in walked(parse(file), ast.ClassDef)}
        for found, lines in defined(parse(file)):
            if lines > FUNCTION_LINES_MAX and found not in classes:
                long[name(file), found] = lines
    assert long == {}


def test_modules_are_short() -> None:
    most = {file: TEST_MODULE_LINES_MAX if name(file).startswith("tests/") else MODULE_LINES_MAX for file in MODULES}
    lines = {name(file): len(read(file).splitlines()) for file in MODULES if len(read(file).splitlines()) > most[file]}
    assert lines == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [name(file) for file in MODULES if read(file).strip() and not read(file).startswith('"""')] == []


def test_nothing_is_left_for_later_in_a_comment() -> None:
    later = re.compile(r"(?:TODO|FIXME|XXX)\b")
    assert [name(file) for file in TEXTS if file != Path(__file__) and later.search(read(file))] == []


def test_no_file_knows_this_machine() -> None:
    path = re.compile(r"/(?<![\w.]/)(?:work|root|home)/\w")
    assert [name(file) for file in TEXTS if file != Path(__file__) and path.search(read(file))] == []
