"""A redelivered message gets the id of its first copy."""

from __future__ import annotations

from bridge.parking.redelivery import FirstCopies

A, B = b"digest-a", b"digest-b"
IDS = [b"%020d" % number for number in range(5)]


def test_a_message_parked_lately_is_known_by_its_digest() -> None:
    firsts = FirstCopies()
    firsts.learn([A + IDS[0] + B + IDS[1]])
    assert firsts.take(B) == IDS[1]
    assert firsts.take(A) == IDS[0]


def test_one_never_parked_is_not_known() -> None:
    firsts = FirstCopies()
    firsts.learn([A + IDS[0]])
    assert firsts.take(B) == b""


def test_the_newest_of_two_alike_comes_first_and_each_only_once() -> None:
    firsts = FirstCopies()
    firsts.learn([A + IDS[0], A + IDS[1]])
    assert [firsts.take(A), firsts.take(A), firsts.take(A)] == [IDS[1], IDS[0], b""]


def test_pieces_of_any_number_of_entries_are_read() -> None:
    firsts = FirstCopies()
    firsts.learn([b"", A + IDS[0] + A + IDS[1] + A + IDS[2], B + IDS[3]])
    assert firsts.take(B) == IDS[3]
    assert firsts.take(A) == IDS[2]
