"""Write what a command did to the audit log. A store that does not take the entry does not fail the command."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence

from bridge.admin.desk import Desk
from bridge.admin.past import AuditEntry
from bridge.admin.verbs import MessageResult
from bridge.core.errors import FINE, StoreUnavailable
from bridge.telemetry.printable import complain

#: Ids that an entry names.
_NAMED_MAX = 5


def operator() -> str:
    """Return the user of the operating system. A container may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def named(ids: Sequence[bytes]) -> str:
    """Return ids as text: the first five, and how many more. Pure."""
    more = f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else ""
    return ", ".join(one.decode() for one in ids[:_NAMED_MAX]) + more


async def noted(desk: Desk, verb: str, results: Sequence[MessageResult], reason: str = "") -> Sequence[MessageResult]:
    """Note what a verb did and the operator's reason, if it changed anything. Return the results."""
    changed = [one.id for one in results if one.code == FINE]
    if changed:
        await note(desk, verb, named(changed), len(changed), reason)
    return results


async def note(desk: Desk, verb: str, what: str, messages: int, reason: str = "") -> None:
    """Write an entry."""
    try:
        await desk.note(AuditEntry(operator(), "cli", verb, what, messages, reason))
    except StoreUnavailable as error:
        complain(f"Warning: the audit log has no entry for this: {error}.")
