"""Which of the addresses that Sentinels name is the master's."""

from __future__ import annotations

from adapters.redis.sentinel import FRESH_S, Word, chosen

OLD, NEW = ("127.0.0.1", 1), ("127.0.0.1", 2)


def test_the_latest_failover_counts_however_many_sentinels_have_not_heard_of_it() -> None:
    words = [Word(OLD, 1, 10.0), Word(NEW, 2, 9.0), Word(OLD, 1, 10.0)]
    assert chosen(words, 10.0, OLD) == NEW


def test_what_a_sentinel_said_a_while_ago_does_not_count() -> None:
    words = [Word(OLD, 1, 10.0), Word(NEW, 2, 10.0 - FRESH_S)]
    assert chosen(words, 10.0, NEW) == OLD


def test_sentinels_that_have_lost_their_memory_change_nothing_while_one_still_names_the_master() -> None:
    words = [Word(NEW, 0, 10.0), Word(OLD, 0, 10.0)]
    assert chosen(words, 10.0, OLD) == OLD
    assert chosen(reversed(words), 10.0, OLD) == OLD


def test_without_a_word_there_is_no_master() -> None:
    assert chosen([], 10.0, OLD) is None
    assert chosen([Word(OLD, 1, 10.0 - FRESH_S)], 10.0, OLD) is None
