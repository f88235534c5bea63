"""What postdate says is wrong with it."""

from __future__ import annotations

from structlog.testing import capture_logs

from bridge.health import WELL, Health


def test_a_sentence_stays_until_it_is_well_again() -> None:
    health = Health()
    health.say("store", "Redis does not answer")
    assert health.sentence() == "Redis does not answer."
    health.say("store", "")
    assert health.sentence() == WELL


def test_a_sentence_that_nobody_takes_back_is_forgotten_after_its_time_and_not_called_well() -> None:
    health = Health()
    with capture_logs() as lines:
        health.say("route orders", "messages are refused", for_s=-1)
        health.say("store", "Redis does not answer", for_s=60)
        assert health.troubles() == {"store": "Redis does not answer"}
        health.say("store", "")
    told = [(line["event"], line["subject"]) for line in lines]
    assert told[1:] == [("not seen again", "route orders"), ("trouble", "store"), ("well again", "store")]


def test_a_running_number_is_no_news() -> None:
    health = Health()
    with capture_logs() as lines:
        for seconds in range(11, 20):
            health.say("overdue", f"messages wait that were due {seconds}s ago")
    assert len(lines) == 1
    assert health.troubles() == {"overdue": "messages wait that were due 19s ago"}
