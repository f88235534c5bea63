"""What `postdate migrate` reports: the steps that move an exchange or topic from another tool to postdate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from bridge.core.errors import FAILED, FINE, REFUSED


class Progress(StrEnum):
    """Where a step of a migration is."""

    DONE = "done"
    PLANNED = "planned"
    YOURS = "yours"
    DRAINING = "draining"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One step, with what it does or why it cannot be done."""

    progress: Progress
    text: str


@dataclass(frozen=True, slots=True)
class Migration:
    """The way of one exchange. ``waiting``: messages that wait in the other tool, None where that is unknown.

    ``toml`` is the route to add to the settings.
    """

    name: str
    kind: str
    waiting: int | None
    steps: tuple[MigrationStep, ...]
    toml: str

    @property
    def code(self) -> int:
        """The exit code: refused, or a step before the last one is not done."""
        found = {step.progress for step in self.steps}
        if Progress.REFUSED in found:
            return REFUSED
        return FAILED if found & {Progress.PLANNED, Progress.YOURS} else FINE

    def finished(self) -> Migration:
        """Return it with every step done."""
        return replace(self, waiting=0, steps=(MigrationStep(Progress.DONE, "everything has moved"),))


@dataclass(frozen=True, slots=True)
class Means:
    """What the operator gives: the command that reaches the broker's own tool, and whether publishers are paused."""

    tool: str = ""
    paused: bool = False
