"""What is wrong, and which faults are one trouble: instances see it with their own ages and counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bridge.delay.duration import read_duration_ms
from bridge.telemetry.subject import STORE_PARK

#: What follows from a journal's database that is away, the first that says most; and what does with write = "before".
_OF_DATABASE = ("journal write", "journal", "journal moves", "journal cold")
_UNPARKED = "nothing is parked: the journal"
#: Where each instance counts its own messages. Elsewhere all count those of the store.
_COUNTED = ("journal write", "confirms")
#: An age, or a number of messages. A number in a name is neither.
_NUMBER = re.compile(
    r"(?<![^\s(])\d+(?:\.\d+)? ?(?:ms|[smhd])(?: \d+(?:ms|[smhd]))*(?=[\s,;.)]|$)|(?<=messages: )\d+(?:,\d{3})*"
)


class Fault(NamedTuple):
    """What is wrong: the instances that have the trouble ("" for none), with what, and the fact without a full stop."""

    instance: str
    subject: str
    text: str


def merged(faults: Iterable[Fault]) -> list[Fault]:
    """Make one of the same trouble of several instances, also where their ages and counts differ."""
    same: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        # A database that is away gives each instance another error.
        shape = fault.subject if fault.subject in _OF_DATABASE else _NUMBER.sub("#", fault.text)
        same.setdefault((fault.subject, shape), []).append(fault)
    return _one_database([joined(group) for group in same.values()])


def joined(group: Sequence[Fault]) -> Fault:
    """Make one fault of the same trouble: with the largest age, and with the sum of what each counts for itself."""
    numbers = zip(*(_NUMBER.findall(fault.text) for fault in group), strict=False)
    total = sum if group[0].subject in _COUNTED else max
    shown = (_largest(same) if not same[0][-1].isdigit() else f"{total(map(_count, same)):,}" for same in numbers)
    text = _NUMBER.sub(lambda number: next(shown, number[0]), group[0].text) if len(group) > 1 else group[0].text
    return Fault(_names(group), group[0].subject, text)


def _one_database(faults: Sequence[Fault]) -> list[Fault]:
    """Keep of the faults of the journal's database the one that says most, for all their instances."""
    group = [fault for fault in faults if fault.subject in _OF_DATABASE or fault.text.startswith(_UNPARKED)]
    if len(group) < 2:
        return list(faults)
    order = [str(STORE_PARK), *_OF_DATABASE]
    first = min(group, key=lambda fault: order.index(fault.subject))
    kept = (fault for fault in faults if fault is first or fault not in group)
    subject = _OF_DATABASE[0] if first.subject == str(STORE_PARK) else first.subject  # the webhook reports the journal
    whole = first._replace(instance=_names(group), subject=subject)
    return [whole if fault is first else fault for fault in kept]


def _names(faults: Iterable[Fault]) -> str:
    return ", ".join(dict.fromkeys(name for fault in faults for name in fault.instance.split(", ")))


def _largest(ages: Iterable[str]) -> str:
    return max(ages, key=read_duration_ms)


def _count(number: str) -> int:
    return int(number.replace(",", ""))
