"""Which server is the master when Sentinels disagree."""

from __future__ import annotations

from adapters.redis.sentinel import FRESH_S, MasterReport, choose_master

OLD, NEW = ("127.0.0.1", 1), ("127.0.0.1", 2)


def test_the_latest_failover_counts_even_if_most_sentinels_report_an_earlier_one() -> None:
    reports = [MasterReport(OLD, 1, 10.0), MasterReport(NEW, 2, 9.0), MasterReport(OLD, 1, 10.0)]
    assert choose_master(reports, 10.0, OLD) == NEW


def test_an_old_report_does_not_count() -> None:
    reports = [MasterReport(OLD, 1, 10.0), MasterReport(NEW, 2, 10.0 - FRESH_S)]
    assert choose_master(reports, 10.0, NEW) == OLD


def test_sentinels_without_an_epoch_change_nothing_while_one_still_names_the_master() -> None:
    reports = [MasterReport(NEW, 0, 10.0), MasterReport(OLD, 0, 10.0)]
    assert choose_master(reports, 10.0, OLD) == OLD
    assert choose_master(reversed(reports), 10.0, OLD) == OLD


def test_without_a_fresh_report_there_is_no_master() -> None:
    assert choose_master([], 10.0, OLD) is None
    assert choose_master([MasterReport(OLD, 1, 10.0 - FRESH_S)], 10.0, OLD) is None
