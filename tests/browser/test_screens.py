"""Every screen in both colour schemes: accessible, within its width, usable by keyboard, calm while a person works."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.api import AUTH, VIEWER
from tests.browser.conftest import OpenPage
from tests.browser.watch import SCREENS, Watched
from tests.browser.world import PARKED, World

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
WIDTHS = (360, 768, 1280)


def dialogs(page: Watched) -> list[tuple[str, str]]:
    """Screens with the button that opens a dialog on each."""
    return [("#/messages", "Deliver now order"), ("#/routes", "Pause route"), ("", "Keyboard help")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_on_any_screen(open_page: OpenPage, url: str, axe: str, scheme: str, width: int) -> None:
    page = open_page(url, width, scheme=scheme)
    found = {}
    for name, place in SCREENS.items():
        page.go(place)
        found[name] = page.findings(axe)
    page.go("#/messages")
    page.rows().nth(3).locator("a.open").click()
    page.says("Life line")
    page.settle()
    found["message"] = page.findings(axe)
    for place, button in dialogs(page):
        page.go(place)
        page.page.get_by_role("button", name=button).first.click()
        page.page.locator("dialog[open]").wait_for()
        page.settle()
        found[f"dialog {button}"] = page.findings(axe)
    assert {name: some for name, some in found.items() if some} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_while_something_is_wrong(
    open_page: OpenPage, url: str, axe: str, world: World, scheme: str
) -> None:
    world.lose_rabbitmq()
    world.clock.advance(3_600_000)
    page = open_page(url, scheme=scheme)
    page.says("RabbitMQ does not answer")
    found = page.findings(axe)
    page.go("#/messages")
    page.page.locator("tr.row .bad", has_text="overdue").first.wait_for()
    page.button("Select all matching").click()
    assert [*found, *page.findings(axe)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_while_the_figures_are_old(
    open_page: OpenPage, url: str, axe: str, world: World, scheme: str
) -> None:
    page = open_page(url, scheme=scheme)
    page.says("All well")
    page.page.locator("table.routes tbody tr").first.wait_for()
    world.lose_redis()
    page.page.locator(".panel.old table.routes").wait_for(timeout=20_000)
    assert page.findings(axe) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_no_screen_is_wider_than_the_window(open_page: OpenPage, url: str, width: int) -> None:
    page = open_page(url, width)
    wide = {}
    for name, place in SCREENS.items():
        page.go(place)
        wide[name] = page.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert {name: by for name, by in wide.items() if by > 0} == {}


def test_the_screens_do_not_move_while_they_refresh(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    page.page.evaluate("""() => {
        window.shifted = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((one) => (window.shifted += one.value)))
            .observe({ type: "layout-shift", buffered: false });
    }""")
    for place in ("", "#/messages", "#/routes"):
        page.go(place)
        page.page.evaluate("window.shifted = 0")
        page.page.wait_for_timeout(4500)
        assert page.page.evaluate("window.shifted") < 0.01


def test_everything_is_reached_with_the_keyboard(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(f"{url}#/messages")
    keys = page.page.keyboard
    # What a key does depends on the role, which /status tells: it may answer after the list.
    page.rows().first.get_by_role("checkbox").wait_for()
    for key in "jjk":
        keys.press(key)
    assert page.page.evaluate("document.activeElement.closest('tr').dataset.id") == page.rows().first.get_attribute(
        "data-id"
    )
    keys.press("x")
    page.says("Selected: 1")
    keys.press("Escape")
    page.says("Selected: 0")
    keys.press("/")
    assert page.page.evaluate("document.activeElement.id") == "filter-first"
    keys.press("Escape")
    keys.press("?")
    page.says("next and previous row")
    keys.press("Escape")
    assert page.page.locator("dialog[open]").count() == 0
    keys.press("j")
    keys.press("Enter")
    page.says("Life line")


def test_a_dialog_keeps_the_focus_and_gives_it_back(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/messages")
    button = page.rows().nth(5).get_by_role("button", name="Cancel")
    button.focus()
    page.page.keyboard.press("Enter")
    page.page.locator("dialog[open]").wait_for()
    for _ in range(12):
        page.page.keyboard.press("Tab")
        assert page.page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    page.page.keyboard.press("Escape")
    assert button.evaluate("(one) => one === document.activeElement")


def test_the_refresh_waits_while_messages_are_selected_and_goes_on_after(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(f"{url}#/messages")
    page.rows().nth(2).get_by_role("checkbox").check()
    page.settle()
    world.calls.clear()
    page.page.wait_for_timeout(4500)
    assert {path for _, path in world.calls} == {"/api/v1/status"}
    assert page.rows().nth(2).get_by_role("checkbox").is_checked()
    page.button("Clear selection").click()
    page.page.wait_for_timeout(3000)
    assert ("GET", "/api/v1/messages") in world.calls


def test_what_is_typed_into_a_filter_survives_a_refresh(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/messages")
    page.page.get_by_role("textbox", name="Key").press_sequentially("order-")
    page.page.wait_for_timeout(4500)
    assert page.page.get_by_role("textbox", name="Key").input_value() == "order-"


def test_a_filter_is_kept_in_the_address(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/messages")
    page.page.get_by_label("Route").select_option("payments")
    page.page.wait_for_function("location.hash.includes('route=payments')")
    page.page.reload()
    page.rows().first.wait_for()
    assert set(page.page.locator("tr.row .c-route").all_inner_texts()) != set()
    assert all(text.startswith("payments") for text in page.page.locator("tr.row .c-route").all_inner_texts())


def test_a_token_is_asked_for_and_kept_in_this_tab_only(open_page: OpenPage, url: str, world: World) -> None:
    world.serve_app(AUTH)
    page = open_page(f"{url}#/messages")
    page.page.get_by_role("textbox", name="Token").fill(VIEWER)
    page.page.keyboard.press("Enter")
    page.rows().first.wait_for()
    assert page.rows().first.get_by_role("button").count() == 0  # a viewer sees no verbs
    assert page.page.evaluate("Object.values(sessionStorage)") == [VIEWER]
    assert page.page.evaluate("[Object.values(localStorage), document.cookie]") == [[], ""]


def test_a_page_without_a_token_says_sign_in_and_claims_no_trouble(open_page: OpenPage, url: str, world: World) -> None:
    world.serve_app(AUTH)
    page = open_page(url)
    expect(page.page.get_by_role("textbox", name="Token")).to_be_focused()
    expect(page.page.locator(".verdict.wait", has_text="Sign in: this page needs a token.")).to_be_visible()
    shown = page.page.locator(".page").inner_text()
    assert "does not answer" not in shown
    assert "has not answered" not in shown
    assert page.page.locator(".verdict.bad, .page .trouble").count() == 0
    page.page.keyboard.type(VIEWER)
    page.page.keyboard.press("Enter")
    page.says("All well")


def test_more_than_a_thousand_messages_need_a_typed_word(open_page: OpenPage, url: str, world: World) -> None:
    world.send(7_200_000, 1_200 - PARKED)
    page = open_page(f"{url}#/messages")
    page.button("Select all matching").click()
    page.button("Cancel …").click()
    dialog = page.page.locator("dialog")
    act = dialog.get_by_role("button", name="Cancel 1,200")
    act.wait_for()
    assert act.is_disabled()
    dialog.get_by_label("Type CANCEL").fill("CANCEL")
    world.desks.answer_s = 3.0  # of reading the ids, and of each of five batches
    act.click()
    dialog.get_by_text("Running").wait_for()
    dialog.get_by_role("button", name="Stop").click()
    dialog.get_by_text("Stopped").wait_for()
    assert any('"state": "stopped"' in document for document in world.memory.operations.values())


def test_the_time_zone_is_one_click_away(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/messages")
    page.rows().first.wait_for()
    assert page.rows().first.locator("time").inner_text().endswith(" UTC")
    page.page.get_by_role("button", name="Times in UTC").click()
    page.page.get_by_role("button", name="Change the zone").wait_for()
    assert page.page.evaluate("localStorage['postdate.zone']") == "local"


def test_the_list_is_exported(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(f"{url}#/messages?state=dead")
    page.rows().first.wait_for()
    with page.page.expect_download() as download:
        page.button("Export JSONL").click()
    lines = download.value.path().read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == world.ids_of("dead")


def test_dead_letters_are_a_warning_in_every_place(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(url)
    page.page.locator(".tile.warn", has_text="Dead letters").wait_for()
    page.page.locator("td.num a.warn").first.wait_for()
    page.go(f"#/messages/{min(world.ids_of('dead'))}")
    page.page.locator(".badge.warn", has_text="dead").first.wait_for()
