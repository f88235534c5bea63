"""The document, the table, the pictures and the page of a comparison, from invented figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge.cli.compare_files import before_it_starts, folder_for, print_table, write_figures, write_pictures
from bridge.core.errors import SettingsError
from bridge.lab.bench.figures import Figures
from bridge.lab.compare.lines import Line, lines, number
from bridge.lab.compare.measure import Step
from bridge.lab.compare.modes import BY_NAME, MODES, as_set
from bridge.lab.compare.page import page
from bridge.lab.compare.plan import Plan, quick
from bridge.lab.compare.plots import LIGHT, Picture, apart, burst, by_delay, lateness, pictures, wider
from bridge.lab.compare.result import Result, complaints, document, unfinished
from bridge.lab.compare.summary import markdown

PLAN = Plan(rates=(100, 400), count=1000)
FINE: Figures = {"lost": 0, "duplicates": 0, "early": 0, "refused": 0}
ABOUT: dict[str, Any] = {
    "date": "2026-11-21T20:00:00+00:00",
    "machine": {"cpu": "<script>alert(1)</script>", "cores": 2, "memory_bytes": 2**34, "system": "Linux"},
    "versions": {"postdate": "0.1.0"},
    "settings": {"redis.durability": "everysec"},
}


def rate(at: float, late_ms: Sequence[float], **figures: float) -> Step:
    share = [(place / len(late_ms), late) for place, late in enumerate(late_ms, 1)]
    told: Figures = {
        "messages": 1000,
        "rate_per_s": at,
        "p50_ms": late_ms[0],
        "p99_ms": late_ms[-1],
        "max_ms": late_ms[-1],
        **FINE,
        **figures,
    }
    return Step("rate", f"rate {at:g}", told, curve=share, by_delay=[(1000.0, late) for late in late_ms])


def result(mode: str, *, lost: int = 0) -> Result:
    flood: Figures = {"messages": 1000, "publish_per_s": 9000, "deliver_per_s": 8000, "out_of_order": 0, **FINE}
    burst: Figures = {"messages": 1000, "all_out_ms": 90.0, "published_from_s": -2.0, "published_to_s": -1.0, **FINE}
    steps = [
        rate(100, [0.0, 2.0, 9.0], lost=lost),
        rate(400, [3.0, 4.0, 5000.0], short_behind_long_ms=-0.04),
        Step("flood", "flood", flood),
        Step("burst", "burst", burst, timeline=[(0.0, 600), (0.02, 400)]),
    ]
    return Result(BY_NAME[mode], steps)


def every_mode() -> list[Result]:
    return [result(mode.name) for mode in MODES]


def test_faults_are_complaints_in_the_modes_of_postdate_and_figures_in_the_others() -> None:
    assert complaints([result("redis", lost=2), result("plugin", lost=3)]) == ["redis: 2 lost"]
    found = document([result("redis", lost=2)], {}, PLAN, ABOUT, True)
    assert found["ok"] is False
    assert document([result("plugin", lost=3)], {}, PLAN, ABOUT, True)["ok"] is True


def test_the_document_is_json_and_says_what_was_left_out() -> None:
    found = json.loads(json.dumps(document(every_mode(), {"levels": "a reason"}, PLAN, ABOUT, True)))
    assert found["left_out"] == {"levels": "a reason"}
    assert found["plan"]["seed"] == PLAN.seed
    assert [mode["name"] for mode in found["modes"]] == [mode.name for mode in MODES]


def test_a_mode_without_all_its_steps_is_named() -> None:
    redis = BY_NAME["redis"]
    assert "redis" in unfinished([Result(redis, [])], [redis], PLAN)[0]
    assert unfinished([], [redis], PLAN) != []
    plain = Result(BY_NAME["plain"], result("plain").steps[:3])
    assert unfinished([plain], [plain.mode], PLAN) == []


def test_the_table_has_a_line_for_each_question_that_somebody_answers() -> None:
    found = {(line.group, line.label): line.cells for line in lines([result("redis"), result("ttl")], PLAN)}
    assert found["Lateness at 400 a second, ms", "max"] == ("5,000", "5,000")
    assert found["Delays of 1 to 5 s, at 400 a second, ms", "short behind long"] == ("0", "0")
    assert found["Messages, all runs", "lost"] == ("0", "0")
    assert found["What waits", "can be cancelled"][1] == "nothing"
    assert not [label for _, label in found if "bytes" in label]


def test_memory_is_told_for_a_message_and_not_at_all_where_the_server_gave_some_back() -> None:
    grew: Figures = {"messages": 1000, "store_grew_bytes": 600_000, "broker_grew_bytes": -3}
    waiting = Result(BY_NAME["redis"], [*result("redis").steps, Step("backlog", "backlog", grew)])
    found = {line.label: line.cells for line in lines([waiting], PLAN)}
    assert found["store, bytes each"] == ("600",)
    assert "broker, bytes each" not in found


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (-0.04, "0"), (0.06, "0.1"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234")],
)
def test_numbers_have_no_more_digits_than_they_mean(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.fixture(scope="module")
def drawn() -> list[Picture]:
    return pictures(every_mode(), PLAN)


@pytest.mark.slow
def test_pictures_are_drawn_for_all_modes_and_say_what_they_show(drawn: list[Picture]) -> None:
    assert [picture.name for picture in drawn] == ["lateness", "delays", "throughput", "burst"]
    for picture in drawn:
        for png, svg in ((picture.png, picture.svg), (picture.dark_png, picture.dark_svg)):
            assert png.startswith(b"\x89PNG")
            assert b"<svg" in svg
        assert picture.png != picture.dark_png
        assert picture.text.endswith(".")


@pytest.mark.parametrize(
    ("heights", "moved"),
    [
        ([], []),
        ([0.1, 0.5], [0.1, 0.5]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.2, 0.48, 0.5, 0.52], [0.2, 0.4, 0.5, 0.6]),
        ([0.3, 0.45, 0.5], [0.3, 0.425, 0.525]),
    ],
)
def test_names_lie_apart_and_near_their_lines(heights: list[float], moved: list[float]) -> None:
    assert apart(heights, 0.1) == pytest.approx(moved)


def test_a_timeline_with_wider_bars_has_as_many_messages_and_none_across_the_moment() -> None:
    narrow = [(-0.04, 1.0), (-0.02, 2.0), (0.0, 4.0), (0.02, 8.0), (0.04, 16.0)]
    assert wider(narrow, 1) == narrow
    assert wider(narrow, 2) == [(-0.04, 3.0), (0.0, 12.0), (0.04, 16.0)]
    assert wider(narrow, 3) == [(-0.06, 3.0), (0.0, 28.0)]


@pytest.mark.slow
def test_what_was_not_measured_is_not_drawn() -> None:
    only_rates = Result(BY_NAME["redis"], result("redis").steps[:1])
    assert [picture.name for picture in pictures([only_rates], PLAN)] == ["lateness"]
    assert pictures([Result(BY_NAME["redis"], [])], PLAN) == []


@pytest.mark.slow
def test_a_lateness_is_drawn_as_it_is_down_to_a_tenth_of_a_millisecond() -> None:
    late_ms = [-0.3, 0.05, 0.2, 0.4, 0.6]
    quick = Result(BY_NAME["plain"], [rate(100, late_ms)])
    drawing = lateness([quick], PLAN, LIGHT)
    assert drawing is not None
    panel = drawing.figure.axes[0]
    assert np.asarray(panel.lines[0].get_ydata()).tolist() == late_ms
    assert panel.get_ylim()[0] == 0.1


@pytest.mark.slow
def test_the_shares_of_two_rates_stand_below_each_other_though_one_had_more_messages() -> None:
    two = Result(BY_NAME["redis"], [rate(100, [1.0, 2.0]), rate(400, [1.0, 2.0], messages=90_000)])
    drawing = lateness([two], PLAN, LIGHT)
    assert drawing is not None
    first, second = drawing.figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xticks().tolist() == second.get_xticks().tolist()
    assert all(axes.xaxis.get_tick_params()["labelbottom"] for axes in (first, second))


@pytest.mark.slow
def test_a_mode_of_which_nothing_came_leaves_the_others_their_pictures() -> None:
    silent = Step("rate", "rate 400", {"messages": 1000, "rate_per_s": 400, **FINE, "lost": 1000})
    assert [picture.name for picture in pictures([Result(BY_NAME["ttl"], [silent]), result("redis")], PLAN)]


@pytest.mark.slow
def test_the_page_needs_no_network_and_no_script_and_escapes_what_it_is_told(drawn: list[Picture]) -> None:
    text = page(
        every_mode(), lines(every_mode(), PLAN), drawn, {"levels": "a <reason>"}, ABOUT, ["It ended & so on."], PLAN
    )
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", text) == []
    assert re.findall(r"(?i)https?:|//\w|url\(|@import|<script|<link|<iframe", text) == []
    assert "a &lt;reason&gt;" in text
    assert "It ended &amp; so on." in text
    assert text.count("<img") == text.count('alt="') == len(drawn)
    assert 'name="viewport"' in text


@pytest.mark.slow
def test_without_matplotlib_there_is_the_document_and_a_sentence_that_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bridge.lab.compare.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = folder_for(tmp_path / "new" / "folder", datetime(2026, 11, 21))
    assert "pip install matplotlib" in before_it_starts()
    write_figures(folder, {"ok": True}, [result("redis")], PLAN, ABOUT)
    said = write_pictures(folder, [result("redis")], {}, PLAN, ABOUT, [])
    assert "pip install matplotlib" in said
    assert sorted(file.name for file in folder.iterdir()) == ["compare.json", "table.md"]


def test_a_folder_that_cannot_be_made_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--out: nothing can be written to .*file.* \(Not a directory\)"):
        folder_for(tmp_path / "file" / "report", datetime(2026, 11, 21))


def test_the_table_of_the_page_names_a_group_once() -> None:
    found = [Line("group", "first", ("1",)), Line("group", "second", ("2",))]
    assert page([result("redis")], found, [], {}, ABOUT, [], PLAN).count(">group<") == 1


def test_a_table_of_the_page_has_a_row_for_each_mode_that_has_an_answer() -> None:
    found = [Line("group", "first", ("1", "")), Line("group", "second", ("2", ""))]
    text = page([result("redis"), result("ladder")], found, [], {}, ABOUT, [], PLAN)
    table = text[text.index(">group<") :].partition("</table>")[0]
    assert "redis" in table
    assert "ladder" not in table


def test_the_table_for_a_readme_has_a_row_for_each_mode_and_says_where_and_when() -> None:
    rows = markdown(every_mode(), PLAN, ABOUT).splitlines()
    assert len({row.count("|") for row in rows[: len(MODES) + 2]}) == 1
    assert [row.split(" | ")[0] for row in rows[2 : len(MODES) + 2]] == [f"| {mode.title}" for mode in MODES]
    assert "0, 9" in rows[2]  # p50 and p99 of the first rate
    assert rows[-1].startswith("2026-11-21")


def test_rounding_is_said_to_be_that_of_the_delays_that_were_measured() -> None:
    head = markdown(every_mode(), quick(PLAN), ABOUT).splitlines()[0]
    assert "| delays of 0.2 to 0.8 s rounded by up to, ms |" in head
    assert "61 minutes to 2 hours" in markdown(every_mode(), PLAN, ABOUT)


@pytest.mark.slow
def test_that_a_flood_which_drains_is_no_rate_to_be_held_stands_by_the_table_the_picture_and_the_page(
    drawn: list[Picture],
) -> None:
    said = "no rate that can be held"
    assert said in markdown(every_mode(), PLAN, ABOUT)
    assert said in next(picture.text for picture in drawn if picture.name == "throughput")
    assert said in page([result("redis")], [], [], {}, ABOUT, [], PLAN)


def test_what_is_rounding_of_the_time_until_all_are_out_is_told_apart_where_there_is_any() -> None:
    exact, rounded = result("redis"), result("levels")
    rounded.steps[3].figures["moved_max_ms"] = 60
    rows = markdown([exact, rounded], PLAN, ABOUT).splitlines()
    assert "all out after, ms (of it rounding) |" in rows[0]
    assert "| 90 |" in rows[2]
    assert "| 90 (60) |" in rows[3]
    found = {line.label: line.cells for line in lines([exact, rounded], PLAN)}
    assert (found["all out after"], found["of it rounding"]) == (("90", "90"), ("", "60"))


def test_a_quick_look_is_called_one_below_the_table_of_the_terminal_and_in_what_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = quick(PLAN)
    print_table([result("redis")], look)
    piped = capsys.readouterr()
    assert {line.count("\t") for line in piped.out.splitlines()} == {3}
    assert "A look only: 1.5 s of messages" in piped.err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table([result("redis")], look)
    assert "A look only: 1.5 s of messages" in capsys.readouterr().out
    assert "A look only: 1.5 s of messages" in markdown([result("redis")], look, ABOUT)
    print_table([result("redis")], PLAN)
    assert "A look only" not in capsys.readouterr().out + markdown([result("redis")], PLAN, ABOUT)


@pytest.mark.slow
def test_the_page_says_what_the_ways_are_and_what_they_come_to_before_it_shows_a_picture(drawn: list[Picture]) -> None:
    text = page(every_mode(), [], drawn, {}, ABOUT, [], PLAN)
    opening = text[: text.index("<img")]
    for mode in MODES:
        assert mode.title in opening
        assert mode.short in opening
    assert "at 400 messages a second with delays of 1 to 5 s" in opening
    assert "<td>3</td><td>5,000</td>" in opening


def test_the_page_has_a_date_for_people() -> None:
    assert "21 November 2026, 20:00 UTC." in page([result("redis")], [], [], {}, ABOUT, [], PLAN)


def test_a_figure_that_can_be_misread_is_explained_right_below_its_table() -> None:
    grew: Figures = {"messages": 1000, "broker_grew_bytes": 600_000}
    waiting = Result(BY_NAME["redis"], [*result("redis").steps, Step("backlog", "backlog", grew)])
    text = page([waiting], lines([waiting], PLAN), [], {}, ABOUT, [], PLAN)
    for label, said in (("short behind long", "Below 0 nothing came early"), ("broker, bytes each", "With redis no")):
        after = text[text.index(f">{label}<") :]
        assert 0 < after.index(said) < after.index("<caption>")


@pytest.mark.slow
def test_each_panel_has_its_own_numbers_along() -> None:
    for draw in (by_delay, burst):
        drawing = draw(every_mode(), PLAN, LIGHT)
        assert drawing is not None
        drawing.figure.draw_without_rendering()
        for axes in drawing.figure.axes:
            shown = [label.get_text() for label in axes.get_xticklabels() if label.get_visible()]
            assert any(text.endswith(" s") for text in shown)


@pytest.mark.slow
def test_a_dot_that_was_not_rounded_is_explained_where_it_is_seen(drawn: list[Picture]) -> None:
    text = next(picture.text for picture in drawn if picture.name == "delays")
    assert "asked for exactly a level" in text


def test_what_the_nearest_level_hastens_is_a_figure_and_no_complaint() -> None:
    steps = [rate(100, [0.0], early=3)]
    assert complaints([Result(as_set(BY_NAME["levels"], "nearest"), steps)]) == []
    assert complaints([Result(BY_NAME["levels"], steps)]) == ["levels: 3 early"]
