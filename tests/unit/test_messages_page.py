"""deploy/messages.md has every log line, subject and dead letter of the code, and nothing that the code cannot say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from bridge.core.reasons import ReasonKind
from tests.parsed import ROOT, SHIPPED, name, parse, read, walked

PAGE = ROOT / "deploy" / "messages.md"
#: What stands for a value of run time, here and on the page.
HOLE = "…"
#: A subject or event that is a parameter here. Its callers are read instead.
PASSED_ON = {
    "bridge/telemetry/reconnect.py": "keep_connected",
    "bridge/process/watchdog.py": "look",
    "bridge/pipeline/leases.py": "give_back",
    "adapters/rabbitmq/management_watch.py": "look",
}
#: Functions that return a dictionary of subjects and sentences.
LOOKS = {"look": "adapters/redis/guard.py", "front_troubles": "fronts.py", "redelivery_troubles": "rejections.py"}
#: Where an argument of a call is the subject and the sentence of `Health.say`, or the event of `log.warning`.
SAYS = {"say": (0, 1), "keep_connected": (2, 3)}
REPORTS = re.compile(r"\b(log\.|(say|tell|keep_connected|give_back)\()")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOGS = {"warning": 0, "error": 0, "exception": 0, "critical": 0, "give_back": 1}


class Source(NamedTuple):
    """A file of the product."""

    path: str
    tree: ast.Module
    #: Whether it may report something.
    reports: bool


@cache
def sources() -> tuple[Source, ...]:
    return tuple(Source(name(file), parse(file), REPORTS.search(read(file)) is not None) for file in SHIPPED)


def written(expression: ast.expr) -> str:
    """Return the text of a literal, with holes for what is filled in; "" for anything else."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value
    if isinstance(expression, ast.JoinedStr):
        return "".join(written(part) or HOLE for part in expression.values)
    return ""


def texts_of(expression: ast.expr, source: Source, scope: ast.AST) -> set[str]:
    """Return what ``expression`` can be: a literal, a name assigned one, or a call of a function that returns one."""
    if isinstance(expression, ast.IfExp):
        return texts_of(expression.body, source, scope) | texts_of(expression.orelse, source, scope)
    if isinstance(expression, ast.Name | ast.Attribute):
        name = ast.unparse(expression)
        for place in (scope, source.tree, _subjects()):
            assigned = [node.value for node in walked(place, ast.Assign) if _names(node, name)]
            if assigned:
                return {
                    text for value in assigned if value is not expression for text in texts_of(value, source, scope)
                }
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
        name = expression.func.id
        if name == "Subject":
            words = (texts_of(word, source, scope) or {HOLE} for word in expression.args)
            return {" ".join(part) for part in product(*words)}
        functions = [node for node in walked(source.tree, ast.FunctionDef) if node.name == name]
        returned = [node for function in functions for node in walked(function, ast.Return)]
        return {text for node in returned if node.value for text in texts_of(node.value, source, functions[0])}
    return {written(expression)} - {""}


@cache
def _subjects() -> ast.Module:
    """Return the file that has the subjects of several files."""
    return next(source.tree for source in sources() if source.path == "bridge/telemetry/subject.py")


def _names(node: ast.Assign, name: str) -> bool:
    return any(ast.unparse(target) == name for target in node.targets)


class Called(NamedTuple):
    """A call, the name of what is called, and the function around it."""

    source: Source
    scope: ast.AST
    name: str
    call: ast.Call


@cache
def calls() -> tuple[Called, ...]:
    """Return the calls that may report something."""

    def within(source: Source, scope: ast.AST, node: ast.AST) -> Iterator[Called]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name | ast.Attribute):
                called = child.func.id if isinstance(child.func, ast.Name) else child.func.attr
                if called in SAYS or called in LOGS or called == "tell":
                    yield Called(source, scope, called, child)
            inner = child if isinstance(child, FUNCTIONS) else scope
            yield from within(source, inner, child)

    return tuple(
        called for source in sources() if source.reports for called in within(source, source.tree, source.tree)
    )


@cache
def reports() -> dict[str, tuple[set[str], set[str]]]:
    """Return the subjects of `Health.say` with their sentences, as far as they are literals, and the files that say
    them."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for source, scope, called, call in calls():
        if called not in SAYS or (called == "say" and "health" not in ast.unparse(call.func)):
            continue  # what the command line prints
        subject, sentence = (call.args[place] for place in SAYS[called])
        subjects = texts_of(subject, source, scope)
        assert subjects or source.path in PASSED_ON, f"{source.path}:{call.lineno}: an unknown subject"
        for text in subjects:
            sentences, files = found.setdefault(text, (set(), set()))
            sentences |= texts_of(sentence, source, scope)
            files.add(source.path)
    for key, path in looked_for():
        found.setdefault(key, (set(), set()))[1].add(path)
    return found


def looked_for() -> Iterator[tuple[str, str]]:
    """Yield the subjects in the dictionaries of ``LOOKS``, with their files."""
    for source in sources():
        if not source.path.endswith(tuple(LOOKS.values())):
            continue
        for look in walked(source.tree, *FUNCTIONS):
            if source.path.endswith(LOOKS.get(look.name, HOLE)):
                for node in walked(look, ast.DictComp, ast.Dict):
                    keys = [node.key] if isinstance(node, ast.DictComp) else [key for key in node.keys if key]
                    yield from ((text, source.path) for key in keys for text in texts_of(key, source, look))


@cache
def log_lines() -> set[str]:
    """Return the events of `log.warning` and what is worse, and of `Notices` that write to them."""
    found = set()
    for source, scope, called, call in calls():
        receiver = ast.unparse(call.func).rpartition(".")[0]
        dead = called == "tell" and receiver.endswith("dead")  # the other `Notices` write to log.info
        if dead or receiver == "log" or (called == "give_back" and len(call.args) > LOGS[called]):
            events = texts_of(call.args[LOGS.get(called, 0)], source, scope)
            assert events or source.path in PASSED_ON, f"{source.path}:{call.lineno}: an unknown event"
            found |= events
    return {text.replace("%s", HOLE) for text in found}


@cache
def corpus() -> str:
    """Return every text in the code that postdate could say."""
    literals = (node for source in sources() for node in walked(source.tree, ast.Constant, ast.JoinedStr))
    return "\n".join(text for node in literals if (text := written(node)))


def table(heading: str) -> list[str]:
    """Return the first cells of the table under a heading of the page, without the title."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][1:]


def codes(heading: str) -> set[str]:
    """Return what stands as code in those cells."""
    return {code for cell in table(heading) for code in re.findall(r"^`([^`]+)`", cell)}


def fragments(text: str, ends: str = f"{HOLE}| / ") -> list[str]:
    """Return the parts of a sentence that do not change, without the punctuation at their ends."""
    return [part for piece in re.split(ends, text) if len(part := piece.strip(" .,:;'\"()")) > 3]


def test_the_page_has_every_subject_that_health_reports_and_no_other() -> None:
    assert codes("Troubles") == set(reports())


def test_one_file_alone_reports_a_subject_because_two_would_clear_each_other() -> None:
    assert {subject: files for subject, (_, files) in reports().items() if len(files) > 1} == {}


def test_the_page_has_every_warning_and_error_of_the_log_and_no_other() -> None:
    assert codes("Other log lines") | {"trouble"} == log_lines()


def test_the_page_has_every_reason_of_a_message_and_no_other() -> None:
    # Of bytes in the store, which have no reason of their own, and of one that an import does not know.
    others = {"damaged", "unknown"}
    assert codes("Reasons") == {*ReasonKind, *others}
    assert "damaged: " in corpus()


@pytest.mark.parametrize("subject", sorted(codes("Troubles")))
def test_the_page_has_the_sentences_of_a_subject(subject: str) -> None:
    page = PAGE.read_text()
    for sentence in reports()[subject][0]:
        first = fragments(sentence, f"{HOLE}|[.:,] ")[:1]
        assert all(fragment in page for fragment in first), sentence


@pytest.mark.parametrize("heading", ["RabbitMQ", "TLS to RabbitMQ", "Kafka", "Redis", "Left behind"])
def test_the_code_has_every_sentence_of_the_page(heading: str) -> None:
    rows = table(heading)
    assert rows
    assert [part for row in rows for part in fragments(row) if part not in corpus()] == []


def test_a_sentence_that_the_code_no_longer_has_would_be_found() -> None:
    assert fragments("the queue … takes no messages in") == ["the queue", "takes no messages in"]
    assert "takes all messages in" not in corpus()
