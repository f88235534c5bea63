"""The book of a ledger: what is owed, what has arrived, and the verdict over both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.proof.record import record

#: A receiver's clock and the sender's are one; this is for the rounding of due moments to milliseconds.
SLACK_S = 0.001


@dataclass(slots=True)
class Owed:
    """A message that was published: when it is due, and the digest of what must arrive."""

    due: float
    digest: bytes
    #: When the broker confirmed it (Unix seconds); 0.0 before.
    confirmed_at: float = 0.0


@dataclass(slots=True)
class Receipt:
    """One arrival."""

    at: float
    public_id: bytes
    digest: bytes
    due: float


@dataclass
class Verdict:
    """``lost`` and ``mangled`` list message numbers. ``copies`` counts arrivals beyond the first, and ``misordered``
    first arrivals behind a later message of the same key and due moment. ``produced_twice`` counts
    records that the intake itself has a second time; the second gets an id of its own."""

    owed: int = 0
    arrived: int = 0
    unconfirmed: int = 0
    lost: list[int] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    mangled: list[int] = field(default_factory=list)
    strangers: int = 0
    copies: int = 0
    copies_with_another_id: int = 0
    produced_twice: int = 0
    misordered: int = 0
    late_max_s: float = 0.0
    last_at: float = 0.0

    def __str__(self) -> str:
        return (
            f"owed {self.owed}, arrived {self.arrived}, unconfirmed {self.unconfirmed}, lost {len(self.lost)}, "
            f"early {len(self.early)}, mangled {len(self.mangled)}, copies {self.copies} "
            f"({self.copies_with_another_id} with another id, {self.produced_twice} produced twice), "
            f"misordered {self.misordered}, late at most {self.late_max_s * 1000:.0f} ms"
        )

    def assert_kept(self, copies_max: int | None = None) -> None:
        """Assert the promises: nothing lost, early or changed; at most ``copies_max`` copies, each with the same id."""
        print(self)
        record(
            messages=self.owed,
            lost=len(self.lost),
            early=len(self.early),
            copies=self.copies,
            misordered=self.misordered,
        )
        assert self.owed, "nothing was published"
        assert not self.lost, f"lost {len(self.lost)}: {self.lost[:10]}; {self}"
        assert not self.early, f"early by {[f'{seconds * 1000:.1f} ms' for seconds in self.early[:10]]}; {self}"
        assert not self.mangled, f"mangled {self.mangled[:10]}; {self}"
        assert not self.strangers, f"messages from another sender: {self.strangers}; {self}"
        assert self.copies_with_another_id <= self.produced_twice, str(self)
        if copies_max is not None:
            assert self.copies - self.produced_twice <= copies_max, str(self)


def judge(owed: Mapping[int, Owed], receipts: Mapping[int, Sequence[Receipt]], strangers: int) -> Verdict:
    """The verdict over all messages by number. ``strangers`` are arrivals without a known number."""
    found = Verdict(strangers=strangers, arrived=len(receipts))
    for number, debt in list(owed.items()):
        found.owed += bool(debt.confirmed_at)
        found.unconfirmed += not debt.confirmed_at
        came = receipts.get(number, ())
        if debt.confirmed_at and not came:
            found.lost.append(number)
        if came:
            _judge_one(found, number, debt, came)
    return found


def missing(owed: Mapping[int, Owed], receipts: Mapping[int, object]) -> bool:
    """True while anything owed has not arrived."""
    return any(debt.confirmed_at and number not in receipts for number, debt in list(owed.items()))


def _judge_one(found: Verdict, number: int, owed: Owed, receipts: Sequence[Receipt]) -> None:
    first = min(receipt.at for receipt in receipts)
    if first < owed.due - SLACK_S:
        found.early.append(owed.due - first)
    found.late_max_s = max(found.late_max_s, first - owed.due)
    found.last_at = max(found.last_at, *(receipt.at for receipt in receipts))
    if any(receipt.digest != owed.digest for receipt in receipts):
        found.mangled.append(number)
    found.copies += len(receipts) - 1
    found.copies_with_another_id += len({receipt.public_id for receipt in receipts}) - 1


def out_of_order(sequences: Iterable[Sequence[int]]) -> int:
    """The count of numbers that follow a higher one, over all sequences."""
    found = 0
    for numbers in sequences:
        highest = -1
        for number in numbers:
            found += number < highest
            highest = max(highest, number)
    return found
