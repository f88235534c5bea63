"""The document, the table, the pictures and the page of a comparison, from invented figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from bridge.core.errors import SettingsError
from bridge.lab.command import make_folder
from bridge.lab.compare_modes import BY_NAME, MODES, ComparePlan, as_set, quick
from bridge.lab.compare_page import missing, page, write_figures, write_pictures
from bridge.lab.compare_result import CompareStep, ModeComparison, ModeResult
from bridge.lab.compare_table import Cell, Question, markdown, print_table, tables
from bridge.lab.figures import Figures, number

if TYPE_CHECKING:
    from bridge.lab.compare_plots import Chart

PLAN = ComparePlan(rates=(100, 400), count=1000)
FINE: Figures = {"lost": 0, "duplicates": 0, "early": 0, "refused": 0}
ABOUT: dict[str, Any] = {
    "date": "2026-11-21T20:00:00+00:00",
    "machine": {"cpu": "<script>alert(1)</script>", "cores": 2, "memory_bytes": 2**34, "system": "Linux"},
    "versions": {"postdate": "0.1.0"},
    "settings": {"redis.durability": "everysec"},
}


def plots() -> Any:
    """What draws. Its imports take a second, so only the tests that draw make them."""
    return import_module("bridge.lab.compare_plots")


def rate(at: float, late_ms: Sequence[float], **other: float) -> CompareStep:
    share = [(place / len(late_ms), late) for place, late in enumerate(late_ms, 1)]
    measured: Figures = {
        "messages": 1000,
        "rate_per_s": at,
        "p50_ms": late_ms[0],
        "p99_ms": late_ms[-1],
        "max_ms": late_ms[-1],
        **FINE,
        **other,
    }
    return CompareStep("rate", f"rate {at:g}", measured, curve=share, by_delay=[(1000.0, late) for late in late_ms])


def result(mode: str, *, lost: int = 0) -> ModeResult:
    flood: Figures = {"messages": 1000, "publish_per_s": 9000, "deliver_per_s": 8000, "out_of_order": 0, **FINE}
    burst: Figures = {"messages": 1000, "all_out_ms": 90.0, "published_from_s": -2.0, "published_to_s": -1.0, **FINE}
    steps = [
        rate(100, [0.0, 2.0, 9.0], lost=lost),
        rate(400, [3.0, 4.0, 5000.0], short_behind_long_ms=-0.04),
        CompareStep("flood", "flood", flood),
        CompareStep("burst", "burst", burst, timeline=[(0.0, 600), (0.02, 400)]),
    ]
    return ModeResult(BY_NAME[mode], steps)


def of(results: Sequence[ModeResult], plan: ComparePlan = PLAN, **other: Any) -> ModeComparison:
    return ModeComparison(plan, results=list(results), about=ABOUT, **other)


class Line(NamedTuple):
    """A question and each mode's answer."""

    question: Question
    cells: tuple[Cell, ...]


def lines(comparison: ModeComparison) -> list[Line]:
    return [Line(asked, tuple(cells)) for columns in tables(comparison).values() for asked, cells in columns]


def texts(line: Line) -> tuple[str, ...]:
    return tuple(cell.text for cell in line.cells)


def every_mode() -> list[ModeResult]:
    return [result(mode.name) for mode in MODES]


def test_faults_are_complaints_in_postdates_modes_and_only_figures_in_others() -> None:
    assert of([result("redis", lost=2), result("plugin", lost=3)]).complaints() == ["redis: lost 2"]
    found = of([result("redis", lost=2)]).document([])
    assert found["ok"] is False
    assert of([result("plugin", lost=3)]).document([])["ok"] is True


def test_the_document_is_json_and_lists_modes_that_were_left_out() -> None:
    found = json.loads(json.dumps(of(every_mode(), left_out={"levels": "a reason"}).document([])))
    assert found["left_out"] == {"levels": "a reason"}
    assert found["plan"]["seed"] == PLAN.seed
    assert [mode["name"] for mode in found["modes"]] == [mode.name for mode in MODES]


def test_an_incomplete_mode_is_named() -> None:
    redis = BY_NAME["redis"]
    assert "redis" in of([ModeResult(redis, [])], modes=[redis]).unfinished()[0]
    assert of([], modes=[redis]).unfinished() != []
    plain = ModeResult(BY_NAME["plain"], result("plain").steps[:3])
    assert of([plain], modes=[plain.mode]).unfinished() == []


def test_the_table_has_a_line_for_each_question_with_an_answer() -> None:
    found = {line.question[:2]: texts(line) for line in lines(of([result("redis"), result("ttl")]))}
    assert found["Lateness at 400 a second, ms", "max"] == ("5,000", "5,000")
    assert found["Delays of 1 to 5 s, at 400 a second, ms", "short behind long"] == ("0", "0")
    assert found["Messages, all runs", "lost"] == ("0", "0")
    assert not [label for _, label in found if "bytes" in label]


def test_memory_is_shown_per_message_and_blank_if_the_server_released_some() -> None:
    grew: Figures = {"messages": 1000, "store_grew_bytes": 600_000, "broker_grew_bytes": -3}
    waiting = ModeResult(BY_NAME["redis"], [*result("redis").steps, CompareStep("backlog", "backlog", grew)])
    found = {line.question.label: texts(line) for line in lines(of([waiting]))}
    assert found["store, bytes each"] == ("600",)
    assert "broker, bytes each" not in found


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (-0.04, "0"), (0.06, "0.1"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234")],
)
def test_numbers_have_no_more_digits_than_they_mean(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.fixture(scope="module")
def drawn() -> list[Chart]:
    found: list[Chart] = plots().charts(of(every_mode()))
    return found


@pytest.mark.slow
def test_pictures_are_drawn_for_all_modes_with_a_description(drawn: list[Chart]) -> None:
    assert [picture.name for picture in drawn] == ["lateness", "delays", "throughput", "burst"]
    for picture in drawn:
        assert picture.light.startswith(b"\x89PNG")
        assert picture.dark.startswith(b"\x89PNG")
        assert picture.light != picture.dark
        assert picture.text.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize("span", [0.02, 9.0])
def test_bars_of_a_burst_keep_the_message_count_and_do_not_span_the_due_moment(span: float) -> None:
    burst = result("redis")
    burst.steps[3].timeline = [(-0.04, 100), (-0.02, 200), (0.0, 400), (span, 300)]
    burst.steps[3].figures["publish_per_s"] = 0
    charts = {chart.name: chart for chart in plots().charts(of([burst]))}
    drawn = charts["burst"].draw(plots().LIGHT).axes[0].patches[0].get_path().vertices
    corners = [(round(x, 6), y) for x, y in drawn]
    areas = {
        (left, right): (right - left) * max(height, 0) * 1000
        for (left, height), (right, same) in pairwise(corners)
        if height == same and right > left
    }
    assert sum(areas.values()) == pytest.approx(1000)
    assert not [edges for edges in areas if edges[0] < 0 < edges[1]]


@pytest.mark.slow
def test_what_was_not_measured_is_not_drawn() -> None:
    only_rates = ModeResult(BY_NAME["redis"], result("redis").steps[:1])
    assert [chart.name for chart in plots().charts(of([only_rates]))] == ["lateness"]
    assert list(plots().charts(of([ModeResult(BY_NAME["redis"], [])]))) == []


@pytest.mark.slow
def test_lateness_is_drawn_unclamped_on_an_axis_that_ends_at_a_tenth_of_a_millisecond() -> None:
    late_ms = [-0.3, 0.05, 0.2, 0.4, 0.6]
    quick = ModeResult(BY_NAME["plain"], [rate(100, late_ms)])
    figure = plots().charts(of([quick]))[0].draw(plots().LIGHT)
    panel = figure.axes[0]
    assert list(panel.lines[0].get_ydata()) == late_ms
    assert panel.get_ylim()[0] == 0.1


@pytest.mark.slow
def test_panels_share_their_axis_although_one_rate_had_more_messages() -> None:
    two = ModeResult(BY_NAME["redis"], [rate(100, [1.0, 2.0]), rate(400, [1.0, 2.0], messages=90_000)])
    figure = plots().charts(of([two]))[0].draw(plots().LIGHT)
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xticks().tolist() == second.get_xticks().tolist()
    assert all(axes.xaxis.get_tick_params()["labelbottom"] for axes in (first, second))


@pytest.mark.slow
def test_a_mode_without_arrivals_does_not_prevent_the_pictures_of_others() -> None:
    silent = CompareStep("rate", "rate 400", {"messages": 1000, "rate_per_s": 400, **FINE, "lost": 1000})
    assert all(chart.light for chart in plots().charts(of([ModeResult(BY_NAME["ttl"], [silent]), result("redis")])))


@pytest.mark.slow
def test_the_page_needs_no_network_and_no_script_and_escapes_its_texts(drawn: list[Chart]) -> None:
    broken = ModeResult(BY_NAME["redis"], result("redis").steps[:1], "It ended & so on.")
    text = page(of([*every_mode(), broken], modes=[broken.mode], left_out={"levels": "a <reason>"}), drawn)
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", text) == []
    text = re.sub(r"data:image/png;base64,[\w+/=]+", "", text)
    assert re.findall(r"(?i)https?:|//\w|url\(|@import|<script|<link|<iframe", text) == []
    assert "a &lt;reason&gt;" in text
    assert "It ended &amp; so on." in text
    assert text.count("<img") == text.count('alt="') == len(drawn)
    assert 'name="viewport"' in text


@pytest.mark.slow
def test_without_matplotlib_the_document_is_written_and_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "bridge.lab.compare_plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = tmp_path / "new" / "folder"
    make_folder(folder)
    assert "pip install matplotlib" in missing()
    write_figures(folder, of([result("redis")]))
    said = write_pictures(folder, of([result("redis")]))
    assert "pip install matplotlib" in said
    assert sorted(file.name for file in folder.iterdir()) == ["compare.json", "table.md"]


def test_a_folder_that_cannot_be_created_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"--out: cannot write to .*file.* \(Not a directory\)"):
        make_folder(tmp_path / "file" / "report")


def test_a_table_of_the_page_has_its_group_once_and_says_why_a_row_has_no_figures() -> None:
    alone = ModeResult(BY_NAME["alone"], [rate(400, [1.0], broker_cpu_us=5.0)])
    text = page(of([alone, result("redis")]))
    (group,) = (title for title in tables(of([alone, result("redis")])) if title.startswith("Processor"))
    assert text.count(f">{group}<") == 1
    table = text[text.index(f">{group}<") :].partition("</table>")[0]
    assert "<td>5</td>" in table
    assert '<td class="why">other machine, or unknown</td>' in table


@pytest.mark.parametrize("plan", [PLAN, quick(PLAN)])
def test_no_cell_is_empty_without_a_reason(plan: ComparePlan) -> None:
    failed = ModeResult(BY_NAME["levels"], result("levels").steps[:1], "the broker went away")
    results = [*every_mode(), failed]
    for line in lines(of(results, plan)):
        assert all(bool(cell.text) != bool(cell.why) for cell in line.cells), line
    table = [row for row in markdown(of(results, plan)).splitlines() if row.startswith("|")]
    assert not any("|  |" in row for row in table)
    assert "<td></td>" not in page(of(results, plan))


def test_a_cell_without_a_figure_has_the_right_reason() -> None:
    failed = ModeResult(BY_NAME["ladder"], result("ladder").steps[:2], "the broker went away")
    late = result("redis")
    late.steps[3].figures["all_out_ms"] = None
    plain = result("plain")
    del plain.steps[1].figures["short_behind_long_ms"]
    by_label = {line.question.label: line.cells for line in lines(of([late, failed, plain]))}
    assert by_label["short behind long"][2].why == "no delay"
    assert by_label["delivered"][1].why == "failed"
    others = {line.question.label: line.cells for line in lines(of([late, result("ttl"), plain]))}
    assert others["all out after"][0].why == "published too late"
    processor = lines(of([ModeResult(BY_NAME["alone"], [rate(400, [1.0], broker_cpu_us=5.0)]), late]))
    cells = {line.question.label: line.cells for line in processor if line.question.group.startswith("Processor")}
    assert cells["broker"] == (Cell("5"), Cell("", "other machine, or unknown"))


def test_a_quick_run_names_what_only_a_full_run_measures() -> None:
    said = "Not measured in --quick: memory of waiting messages, a restart of the bridge."
    assert said in markdown(of(every_mode(), quick(PLAN)))
    assert said not in markdown(of(every_mode()))


def test_the_table_for_a_readme_has_a_row_for_each_mode_and_says_where_and_when() -> None:
    headline, _, *rows = markdown(of(every_mode())).splitlines()
    assert not headline.startswith("|")
    assert len({row.count("|") for row in rows[: len(MODES) + 2]}) == 1
    assert [row.split(" | ")[0] for row in rows[2 : len(MODES) + 2]] == [f"| {mode.title}" for mode in MODES]
    assert "| 3 | 5,000 |" in rows[2]  # p50 and p99 of the last rate
    assert rows[-1].startswith("2026-11-21")


def test_the_rounding_column_names_the_measured_delays() -> None:
    head = markdown(of(every_mode(), quick(PLAN)))
    assert "| delays of 1.2 to 3.4 s rounded by up to, ms |" in head
    assert "61 minutes to 2 hours" in markdown(of(every_mode()))


@pytest.mark.slow
def test_table_picture_and_page_warn_that_a_draining_flood_is_no_sustained_rate(
    drawn: list[Chart],
) -> None:
    said = "no rate that can be held"
    assert said in markdown(of(every_mode()))
    assert said in next(picture.text for picture in drawn if picture.name == "throughput")
    assert said in page(of([result("redis")]))


def test_the_rounding_part_of_a_burst_is_shown_separately_if_there_is_any() -> None:
    exact, rounded = result("redis"), result("levels")
    rounded.steps[3].figures["moved_max_ms"] = 60
    found = {line.question.label: texts(line) for line in lines(of([exact, rounded]))}
    assert (found["all out after"], found["of it rounding"]) == (("90", "90"), ("", "60"))


def test_a_quick_run_is_labelled_on_the_terminal_and_in_the_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look = quick(PLAN)
    print_table(of([result("redis")], look))
    piped = capsys.readouterr()
    assert {line.count("\t") for line in piped.out.splitlines()} == {3}
    assert "A quick look: 1.5 s of messages" in piped.err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(of([result("redis")], look))
    assert "A quick look: 1.5 s of messages" in capsys.readouterr().out
    assert "A quick look: 1.5 s of messages" in markdown(of([result("redis")], look))
    print_table(of([result("redis")]))
    assert "A quick look" not in capsys.readouterr().out + markdown(of([result("redis")]))


@pytest.mark.slow
def test_the_page_introduces_the_ways_before_the_pictures(drawn: list[Chart]) -> None:
    opening = page(of(every_mode()), drawn).partition("<img")[0]
    for mode in MODES:
        assert mode.title in opening
        assert mode.how in opening


def test_the_page_has_a_readable_date() -> None:
    assert "21 November 2026, 20:00 UTC." in page(of([result("redis")]))


def test_a_figure_that_can_be_misread_is_explained_below_its_table() -> None:
    grew: Figures = {"messages": 1000, "broker_grew_bytes": 600_000}
    waiting = ModeResult(BY_NAME["redis"], [*result("redis").steps, CompareStep("backlog", "backlog", grew)])
    text = page(of([waiting]))
    for label, said in (("short behind long", "Below 0 nothing was early"), ("broker, bytes each", "With redis no")):
        assert said in text[text.index(f">{label}<") :].partition("<caption>")[0]


@pytest.mark.slow
def test_each_panel_has_its_own_axis_numbers() -> None:
    for chart in (chart for chart in plots().charts(of(every_mode())) if chart.name in ("delays", "burst")):
        figure = chart.draw(plots().LIGHT)
        figure.draw_without_rendering()
        for axes in figure.axes:
            shown = [label.get_text() for label in axes.get_xticklabels() if label.get_visible()]
            assert any(text.endswith(" s") for text in shown)


@pytest.mark.slow
def test_the_picture_of_delays_explains_unrounded_dots(drawn: list[Chart]) -> None:
    text = next(picture.text for picture in drawn if picture.name == "delays")
    assert "asked for exactly a level" in text


def test_early_by_the_nearest_level_is_a_figure_and_no_complaint() -> None:
    steps = [rate(100, [0.0], early=3)]
    assert of([ModeResult(as_set(BY_NAME["levels"], "nearest"), steps)]).complaints() == []
    assert of([ModeResult(BY_NAME["levels"], steps)]).complaints() == ["levels: early 3"]
