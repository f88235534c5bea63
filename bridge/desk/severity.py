"""What `postdate check` and `postdate doctor` say about one thing: how bad it is, the fact, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bridge.core.errors import FAILED, FINE, UNREACHABLE, PostdateError, Unreachable


class Severity(StrEnum):
    """How bad a result is."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the answer. ``text`` is the fact, without a full stop. Some facts end with their advice.

    ``advice`` says what to type or change. ``code`` is the exit code that `check` returns for it.
    """

    level: Severity
    subject: str
    text: str
    code: int = FINE
    advice: str = ""

    @property
    def sentence(self) -> str:
        """The fact and the advice, without a full stop."""
        return f"{self.text}. {self.advice}" if self.advice else self.text

    def row(self) -> dict[str, str | int]:
        """Return it as `check` prints it."""
        return {"level": self.level.value, "subject": self.subject, "text": self.sentence, "code": self.code}

    def finding(self) -> dict[str, str]:
        """Return it as `doctor` prints it."""
        return {"level": self.level.value, "subject": self.subject, "text": self.text, "advice": self.advice}


def ok(subject: str, text: str, advice: str = "") -> CheckResult:
    """Return a result without trouble."""
    return CheckResult(Severity.OK, subject, text, advice=advice)


def warn(subject: str, text: str, advice: str = "") -> CheckResult:
    """Return a warning: it works, and something should be changed."""
    return CheckResult(Severity.WARN, subject, text, advice=advice)


def fail(subject: str, text: str, code: int = FAILED, advice: str = "") -> CheckResult:
    """Return a failure: messages are not delivered, or can be lost or early."""
    return CheckResult(Severity.FAIL, subject, text, code, advice)


def failed(subject: str, error: PostdateError) -> CheckResult:
    """Return the failure that an error means."""
    return fail(subject, str(error), UNREACHABLE if isinstance(error, Unreachable) else FAILED)


def named(names: Sequence[str], most: int) -> str:
    """Return the first names for a sentence, and how many more. Pure."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
