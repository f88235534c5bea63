"""What is wrong, and which faults are one trouble: instances see it with their own ages and counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bridge.delay.duration import read_duration_ms, read_moment_ms
from bridge.telemetry.subject import STORE_PARK

#: What follows from a journal's database that is away, the first that says most; and what does with write = "before".
_OF_DATABASE = ("journal write", "journal", "journal moves", "journal cold")
_UNPARKED = "nothing is parked: the journal"
#: Where each instance counts its own messages, or the records of its partitions. Else all count those of the store.
_COUNTED = ("journal write", "confirms", "kafka topic ", "kafka recreated ")
#: Where the subject alone names the cause, as it does for a database.
_OF_INTAKE = ("rabbitmq deleted ", "rabbitmq recreated ", "kafka recreated ")
#: Instances notice one event within this time (ms).
SAME_EVENT_MS = 20_000
#: A moment, partitions, an age, or a number of messages. A number in a name is none of these.
_VALUE = re.compile(
    r"(?P<moment>\d{4}-\d\d-\d\dT[\d:.]+Z)|(?<=in partitions: )(?P<partitions>\d+(?:, \d+)*)|"
    r"(?P<age>(?<![^\s(])\d+(?:\.\d+)? ?(?:ms|[smhd])(?: \d+(?:ms|[smhd]))*(?=[\s,;.)]|$))|"
    r"(?:(?<=messages: )|(?<=records: ))(?P<count>\d+(?:,\d{3})*)"
)


class Fault(NamedTuple):
    """What is wrong: the instances that have the trouble ("" for none), with what, and the fact without a full stop."""

    instance: str
    subject: str
    text: str


class _Value(NamedTuple):
    """A value in a sentence: what it is (a group of ``_VALUE``), and its text."""

    kind: str
    text: str


def merged(faults: Iterable[Fault]) -> list[Fault]:
    """Make one of the same trouble of several instances, also where their ages, counts and moments differ."""
    same: dict[tuple[str, str], list[list[Fault]]] = {}
    for fault in sorted(faults, key=lambda fault: newest_ms(fault.text)):
        groups = same.setdefault((fault.subject, _cause(fault)), [[]])
        if groups[-1] and newest_ms(fault.text) - newest_ms(groups[-1][0].text) > SAME_EVENT_MS:
            groups.append([])
        groups[-1].append(fault)
    return _one_database([joined(group) for groups in same.values() for group in groups])


def newest_ms(text: str) -> int:
    """Return the last moment that a sentence names (Unix ms); 0 if it names none."""
    return max((read_moment_ms(value.text) for value in _values(text) if value.kind == "moment"), default=0)


def joined(group: Sequence[Fault]) -> Fault:
    """Make one fault of the same trouble: with the largest age, the earliest moment, all partitions, and the sum of
    what each counts for itself. An instance that cannot count leaves the number to the others."""
    if len(group) == 1:
        return group[0]
    values = {fault: _values(fault.text) for fault in group}
    most = max(map(_counts, values.values()))
    counted = [fault for fault in group if _counts(values[fault]) == most]
    kinds = [value.kind for value in values[counted[0]]]
    alike = (fault for fault in counted if [value.kind for value in values[fault]] == kinds)
    oldest = max(alike, key=lambda fault: _oldest_ms(values[fault]))
    own = oldest.subject.startswith(_COUNTED)
    columns = zip(*(values[fault] for fault in counted), strict=False)
    shown = (_together(values[oldest][at].kind, column, own) for at, column in enumerate(columns))
    text = _VALUE.sub(lambda found: next(shown, found[0]), oldest.text)
    return Fault(_names(group), oldest.subject, text)


def _cause(fault: Fault) -> str:
    """Return what the faults of one trouble have in common beside their subject."""
    if fault.subject in _OF_DATABASE or fault.subject.startswith(_OF_INTAKE):  # a database gives each another error
        return ""
    # The broker: each instance names the route of its own oldest message.
    return fault.text.partition(" ")[0] if fault.subject == "confirms" else _VALUE.sub("#", fault.text)


def _values(text: str) -> list[_Value]:
    return [_Value(str(found.lastgroup), found[0]) for found in _VALUE.finditer(text)]


def _counts(values: Sequence[_Value]) -> int:
    return sum(value.kind == "count" for value in values)


def _oldest_ms(values: Sequence[_Value]) -> int:
    return max((read_duration_ms(value.text) for value in values if value.kind == "age"), default=0)


def _together(kind: str, column: Sequence[_Value], own: bool) -> str:
    """Return one text for the same value of several faults. ``own``: each counts for itself."""
    texts = [value.text for value in column if value.kind == kind]
    match kind:
        case "moment":
            return min(texts)
        case "partitions":
            return ", ".join(map(str, sorted({int(number) for text in texts for number in text.split(", ")})))
        case "age":
            return max(texts, key=read_duration_ms)
    return f"{(sum if own else max)(int(text.replace(',', '')) for text in texts):,}"


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
    return ", ".join(sorted({name for fault in faults for name in fault.instance.split(", ")}))
