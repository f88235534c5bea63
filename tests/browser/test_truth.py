"""The page claims nothing from old data, and what it counts, shows and offers is true."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from adapters.memory.memory_sink import HOLD
from bridge.core.orders import Actor, RouteState
from bridge.operate import bulk, find
from bridge.telemetry.subject import Subject
from tests.browser.conftest import OpenPage
from tests.browser.watch import Watched
from tests.browser.world import UNROUTABLE, World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
#: Words that are claims about now.
CLAIMS = re.compile(r"\b(All well|well|live|arrives|running|nothing is late)\b")
#: The text of the first route in the frame in which the banner turns.
_FIRST_ROW = """(banner) => new Promise((done) => {
    const look = () => document.querySelector(banner)
        ? done(document.querySelector("table.routes tbody tr").innerText)
        : requestAnimationFrame(look);
    look();
})"""


def shown(page: Watched) -> str:
    """The visible text of the screen and its footer."""
    return page.page.locator(".page").inner_text()


def js(page: Watched, code: str, *given: Any) -> Any:
    """Call a function of the page's own modules: ``words``, ``state``, ``messages``, ``message``, ``verbs``."""
    names = "words, state, messages, message, verbs"
    imports = f"Promise.all('{names}'.split(', ').map((name) => import(`./page/${{name}}.js`)))"
    return page.page.evaluate(
        f"async (given) => {{ const [{names}] = await {imports}; return ({code})(...given); }}", list(given)
    )


def alter_status(page: Watched, more: dict[str, Any]) -> None:
    """Let the page read other numbers, of all messages and of each route, and wait until it has them."""

    def answer(asked: Any) -> None:
        found = asked.fetch()
        status = found.json() | more
        status["routes"] = [route | more for route in status["routes"]]
        asked.fulfill(response=found, json=status)

    page.page.route("**/api/v1/status*", answer)
    for _ in range(2):  # the page shows the first one when it asks again
        with page.page.expect_response("**/api/v1/status*"):
            pass


def test_while_the_store_is_away_all_figures_have_an_age_and_nothing_is_claimed(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(url)
    page.says("All well")
    for claim in ("live", "arrives", "running", "well"):
        page.page.get_by_text(claim, exact=True).first.wait_for()
    world.lose_redis()
    expect(page.page.locator(".verdict.bad", has_text="Redis does not answer")).to_be_visible(timeout=20_000)
    expect(page.page.locator(".tile.old")).to_have_count(6)
    expect(page.page.locator(".tile .tile-note", has_text="ago")).to_have_count(6)
    expect(page.page.locator(".panel", has_text="Canary").get_by_text("unknown")).to_have_count(2)
    for panel in ("Timeline", "Routes"):
        expect(page.page.locator(".panel", has_text=panel).locator("h2 .age").first).to_be_visible(timeout=20_000)
    assert CLAIMS.findall(shown(page)) == []
    expect(page.page.locator(".panel", has_text="Instances").get_by_text("trouble").first).to_be_visible()
    page.go("#/routes")
    assert CLAIMS.findall(shown(page)) == []
    world.lose_redis(False)
    page.go("")
    page.says("All well", 30)
    expect(page.page.locator(".tile.old")).to_have_count(0)


def test_a_page_that_is_opened_while_the_store_is_away_shows_the_verdict_and_no_figures(
    open_page: OpenPage, url: str, world: World
) -> None:
    world.lose_redis()
    page = open_page(url)
    expect(page.page.locator(".verdict.bad", has_text="Redis does not answer")).to_be_visible()
    assert CLAIMS.findall(shown(page)) == []
    assert not re.search(r"\d", " ".join(page.page.locator(".tile strong").all_inner_texts()))


def test_two_seconds_after_the_last_answer_nothing_is_claimed_and_later_the_banner_is_red(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(url, clock=True)
    page.says("All well")
    page.page.locator(".panel", has_text="Routes").get_by_text("running", exact=True).first.wait_for()
    page.stop_clock()
    page.says("All well")
    world.hung = True
    try:
        page.page.clock.run_for(2_100)
        expect(page.page.locator(".verdict.wait", has_text="(2s ago)")).to_contain_text("nothing overdue.")
        assert CLAIMS.findall(shown(page)) == []
        expect(page.page.locator(".tile.old")).to_have_count(6)
        for panel in ("Routes", "Canary", "Instances"):
            expect(page.page.locator(".panel.old h2", has_text=panel)).to_have_count(1)
        page.page.clock.run_for(1_500)
        expect(page.page.locator(".verdict.wait", has_text="Not known: no answer for 3s.")).to_be_visible()
        page.page.clock.run_for(6_400)
        expect(page.page.locator(".verdict.bad", has_text="has not answered")).to_be_visible()
        assert CLAIMS.findall(shown(page)) == []
    finally:
        world.hung = False
    page.page.clock.resume()
    page.says("All well", 40)


def test_a_store_that_takes_half_a_second_is_no_reason_for_another_banner(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(url, clock=True)
    page.says("All well")
    page.stop_clock()
    page.says("All well")
    page.page.evaluate(
        """() => {
            window.seen = new Set();
            const look = () => window.seen.add(document.querySelector(".verdict").className);
            new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
        }"""
    )
    for _ in range(4):
        world.calls.clear()
        world.hung = True
        page.page.clock.run_for(1_500)  # it asks after a second
        world.hung = False
        page.answered()
        assert ("GET", "/api/v1/status") in world.calls
    assert page.page.evaluate("[...window.seen]") == ["verdict good"]


def test_no_row_contradicts_the_banner(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(url)
    page.says("All well")
    page.page.wait_for_selector("table.routes")
    page.says("delivering")  # there are rates
    for harm, state in ((world.lose_rabbitmq, "broker away"), (world.freeze_neighbour, "nothing in")) * 2:
        harm()
        assert state in page.page.evaluate(_FIRST_ROW, ".verdict.bad")
        harm(False)
        assert "running" in page.page.evaluate(_FIRST_ROW, ".verdict.good")


def test_the_page_goes_on_behind_a_dialog_which_keeps_its_input(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(url)
    page.button("Pause route orders").click()
    reason = page.page.locator("dialog").get_by_label("Reason")
    reason.fill("the bank is clo")
    world.memory.shards[0].begin({"orders": 1_000_000}, b"")  # in the journal
    world.lose_rabbitmq()
    expect(page.page.locator(".verdict.bad", has_text="RabbitMQ does not answer")).to_be_visible()
    expect(page.page.locator(".tile", has_text="Parked").locator("strong")).to_contain_text("M")
    reason.press_sequentially("sed")
    assert reason.input_value() == "the bank is closed"
    assert page.page.locator("footer .live").inner_text() == "live"


def test_while_the_store_is_away_a_list_keeps_its_rows_and_their_age_or_says_that_it_is_not_known(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(f"{url}#/messages")
    page.rows().first.wait_for()
    world.lose_redis()
    page.page.locator(".searching", has_text="List of").wait_for()
    assert page.rows().count() == 50
    page.go("#/messages?state=dead")
    page.says("Not known: the store does not answer.")
    assert "No dead letter" not in shown(page)
    world.lose_redis(False)
    world.do(world.desks.cancel([message_id.encode() for message_id in world.ids_of("dead")]))
    page.says("No dead letter", 20)
    world.lose_redis()
    page.says("Not known: the store does not answer.", 20)
    assert "No dead letter" not in shown(page)


def test_a_list_that_has_not_been_read_yet_is_not_called_empty(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(f"{url}#/messages?key=nothing")
    page.says("No message matches this filter.")
    world.hung = True
    try:
        for query in ("state=dead", "state=history", "key=other"):
            page.page.evaluate("(query) => { location.hash = `#/messages?${query}`; }", query)
            page.page.locator('.list[aria-busy="true"]').wait_for()
            assert not re.search(r"\bNo(thing)?\b", page.page.locator(".list").inner_text())
    finally:
        world.hung = False
    page.go("#/messages?state=dead")
    page.rows().first.wait_for()


def test_a_frozen_instance_is_called_stale_and_its_routes_do_not_run(
    open_page: OpenPage, url: str, world: World
) -> None:
    world.freeze()
    page = open_page(url)
    expect(page.page.locator(".verdict.bad", has_text="it is frozen")).to_be_visible()
    expect(page.page.get_by_text("Not known: no instance runs beside this page.")).to_be_visible()
    page.page.locator(".panel", has_text="Instances").get_by_text("stale", exact=True).wait_for()
    expect(page.page.locator("table.routes").get_by_text("stopped")).to_have_count(5)
    assert "No instance" not in shown(page)
    assert not re.search(r"\b(running|All well)\b", shown(page))


def test_the_history_shows_how_late_each_delivery_was(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(f"{url}#/messages?state=history")
    page.rows().first.wait_for()
    for row in page.rows().all()[:20]:
        delivered = row.locator(".c-end").inner_text() == "delivered"
        assert bool(re.fullmatch(r"[\d.]+m?s", row.locator("td[data-label=Late]").inner_text())) == delivered


def test_the_history_offers_no_filter_that_it_ignores(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/messages?state=history&header=tenant=a")
    page.rows().first.wait_for()
    assert page.page.locator(".filters").get_by_text(re.compile("Header|Min size|Min tries")).count() == 0
    assert js(page, "(query) => messages.filterOf(query)", {"state": "history", "header": "a=b"}) == {
        "state": "history"
    }


def test_only_what_was_overdue_when_it_was_seen_is_called_overdue(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    message = {"state": "parked", "due_ms": 100_000}
    words = "(message, now, at) => words.dueWords(message, now, at)"
    assert js(page, words, message, 104_000, 99_500) == ["was due 4s ago", ""]
    assert js(page, words, message, 120_000, 99_000) == ["was due 20s ago, seen 21s ago", ""]
    assert js(page, words, message, 104_000, 103_000) == ["overdue 4s", "bad"]
    assert js(page, words, message, 130_000, 103_000) == ["overdue 3s, seen 27s ago", "bad"]
    assert js(page, words, message, 95_000, 94_000) == ["in 5s", ""]
    claimed = {"state": "claimed", "due_ms": 100_000}
    assert js(page, words, claimed, 120_000, 100_000) == ["being sent, seen 20s ago", "soon"]


def test_a_list_that_does_not_refresh_says_its_age(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(url)
    page.says("All well")
    (soon,) = world.send(6_000, key="soon")  # the list must be read before
    page.page.goto(f"{url}#/messages?key=soon")
    page.page.locator(f"tr[data-id='{soon}']").get_by_role("checkbox").check()
    page.says("List of ")
    page.page.locator(f"tr[data-id='{soon}']", has_text="was due").wait_for()
    assert "overdue" not in page.page.locator(f"tr[data-id='{soon}']").inner_text()


def test_a_filter_goes_on_by_itself_until_everything_was_looked_at(
    open_page: OpenPage, url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "LOOKED_MAX", 40)
    world.send(86_400_000, header="rare=1")
    page = open_page(f"{url}#/messages?header=rare=1")
    page.rows().first.wait_for()
    expect(page.rows()).to_have_count(1)
    page.says("Searched: looked at 421")
    assert page.page.get_by_text("Continue with").count() == 0


def test_a_long_search_shows_its_progress_and_stops(
    open_page: OpenPage, url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "LOOKED_MAX", 4)
    world.desks.answer_s = 0.3
    page = open_page(f"{url}#/messages?header=never=1")
    page.page.locator(".searching", has_text=re.compile(r"Looked at \d+ of 420, found 0")).wait_for()
    page.button("Stop").click()
    page.page.locator(".searching", has_text="Stopped: looked at").wait_for()
    page.says("“Next” goes on from there")
    assert page.button("Next").is_enabled()


def test_send_shows_commands_that_are_accepted(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/send")
    command = page.page.locator(".command code", has_text="curl")
    command.wait_for()
    assert '"in":"5m"' in command.inner_text()


def test_a_failed_search_offers_a_command_that_works(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/search?q=order 1")
    page.page.locator("code", has_text="postdate show --key 'order 1' --route ROUTE").wait_for()
    call = "(text, routes) => message.showCommand(text, routes)"
    assert js(page, call, "1gd4r5kq2000ab3c9d00", []) == "postdate show 1gd4r5kq2000ab3c9d00"
    assert js(page, call, "order-1", ["orders"]) == "postdate show --key order-1 --route orders"


def test_a_verb_over_a_filter_shows_one_command_that_is_accepted(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    dead = {"state": "dead", "reason": "unroutable"}
    cases: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
        ("cancel", {"state": "parked", "route": "orders", "header": "tenant=a b"}, {}, "wrong campaign"),
        ("cancel", {**dead, "min_tries": 2}, {}, ""),
        ("retry", dead, {}, ""),
        ("retry", {"state": "dead"}, {}, ""),
        ("reschedule", {"state": "parked", "due_before": "1h"}, {"in": "2h"}, ""),
        ("deliver", {"state": "parked", "unknown": "x"}, {}, ""),
    ]
    call = "(verb, filter, due, note) => verbs.cliFor(verb, { filter }, due, note)"
    shown = [js(page, call, *case) for case in cases]
    assert shown == [
        "postdate cancel --state parked --route orders --header 'tenant=a b' --note 'wrong campaign'",
        "postdate cancel --state dead --reason unroutable --min-tries 2",
        "postdate retry --reason unroutable",
        "postdate retry --all",
        "postdate reschedule --due-before 1h --in 2h",
        "",  # it would take too much
    ]


def test_a_bulk_operation_that_still_counts_shows_the_number_of_the_dry_run(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(f"{url}#/messages?state=dead")
    page.button("Select all matching").click()
    page.button("Retry …").click()
    page.page.locator("dialog .sample p").first.wait_for()
    world.desks.answer_s = 30.0
    page.page.locator("dialog button[type=submit]").click()
    page.page.locator("dialog", has_text="0 of 23").wait_for()


def test_a_dialog_counts_to_the_end(open_page: OpenPage, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_COUNT_S", 0.0)  # each count is cut
    page = open_page(f"{url}#/messages?state=dead")
    page.button("Select all matching").click()
    page.button("Retry …").click()
    page.page.locator("dialog h2", has_text="Retry: 23 messages?").wait_for()
    assert page.page.locator("dialog .sample b").count() >= 1


def test_settings_show_what_is_not_set_and_the_address_of_redis(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/system?tab=settings")
    row = page.page.locator("tr", has=page.page.get_by_text("redis.password", exact=True))
    row.get_by_text("not set").wait_for()
    page.page.locator("tr", has_text="redis.url").get_by_text("redis://127.0.0.1:6379/0").wait_for()


def test_an_instance_is_shown_without_raw_json(open_page: OpenPage, url: str, world: World) -> None:
    world.bridges["rabbitmq"].stages.metrics.routes["orders"].received = 21_922
    page = open_page(f"{url}#/instances")
    page.says("web-1")
    assert not re.search(r"[{}\[\]]", page.page.locator("main").inner_text())
    page.says("21,922")


def test_nothing_of_the_system_is_cut_on_a_phone(open_page: OpenPage, url: str) -> None:
    page = open_page(f"{url}#/system?tab=settings", 360)
    page.page.locator("table.pairs td").first.wait_for()
    for part in (".tabs a", "table.pairs tbody th", "table.pairs td"):
        boxes = page.page.locator(part).evaluate_all(
            "(all) => all.map((each) => each.getBoundingClientRect().toJSON())"
        )
        assert boxes
        for box in boxes:
            assert box["width"] > 0, part
            assert box["left"] >= 0, part
            assert box["right"] <= 360, part


def test_verbs_have_keys_of_their_own(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(f"{url}#/messages")
    # The verbs come with the role, which /status tells: it may answer after the list.
    page.rows().first.locator("button[data-key]").first.wait_for()
    for key, title in (("d", "Deliver now"), ("r", "Reschedule"), ("c", "Cancel")):
        page.page.keyboard.press("j")
        page.page.keyboard.press(key)
        heading = page.page.locator("dialog h2", has_text=title)
        heading.wait_for()
        page.page.keyboard.press("Escape")
        heading.wait_for(state="detached")
    page.page.keyboard.press("x")
    page.page.keyboard.press("c")
    page.page.locator("dialog h2", has_text="Cancel: 1 messages?").wait_for()


def test_durations_and_numbers_have_one_form(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    spans = [75, 1_922, 192_000, 90_000_000]
    assert js(page, "(...all) => all.map(words.span)", *spans) == ["75ms", "1s", "3m 12s", "1d 1h"]
    assert js(page, "(...all) => all.map(words.fine)", *spans[:2]) == ["75ms", "1.92s"]
    assert js(page, "(number) => words.count(number)", 1922) == "1,922"


@pytest.mark.parametrize(
    ("ill", "chip"),
    [({"answer": UNROUTABLE}, "refused"), ({"blocked": True}, "late"), ({"answer": HOLD}, "late")],
    ids=["refused", "late", "unconfirmed"],
)
def test_a_route_from_which_nothing_leaves_is_not_called_running(
    open_page: OpenPage, url: str, world: World, ill: dict[str, Any], chip: str
) -> None:
    vars(world.bridges["rabbitmq"].sink).update(ill)
    world.send(0, 3)
    page = open_page(url)
    row = page.page.get_by_role("row", name=re.compile("^orders"))
    expect(row.locator(".badge.warn", has_text=chip)).to_be_visible()


def test_a_pause_that_holds_due_messages_is_amber(open_page: OpenPage, url: str, world: World) -> None:
    world.do(world.desks.order("orders", RouteState.PAUSED, Actor(), ""))
    world.send(0, 3)
    page = open_page(url)
    expect(page.page.locator(".verdict.warn", has_text="Paused: orders (held: 3).")).to_be_visible()


def test_a_warning_is_amber_in_the_banner_the_badge_and_the_note_and_beside_a_trouble_red(
    open_page: OpenPage, url: str, world: World
) -> None:
    page = open_page(url)
    for queue in ("orders", "reminders"):
        text = f"the queue {queue} was deleted at 10:00. It is consumed again"
        world.bridges["rabbitmq"].health.say(Subject("rabbitmq", "recreated", queue), text)
    expect(page.page.locator(".verdict.warn li")).to_have_count(2)
    expect(page.page.locator(".panel", has_text="Instances").locator(".badge.warn", has_text="warning")).to_be_visible()
    page.go("#/instances")
    panel = page.page.locator(".panel", has_text="web-0")
    expect(panel.locator(".badge.warn", has_text="warning")).to_be_visible()
    expect(panel.locator(".note:not(.bad-note)", has_text="It is consumed again")).to_be_visible()
    world.lose_rabbitmq()
    expect(panel.locator(".badge.bad", has_text="trouble")).to_be_visible()
    expect(panel.locator(".bad-note")).to_be_visible()
    page.go("")
    expect(page.page.locator(".verdict.bad li")).to_have_count(3)


def test_the_rate_limit_of_a_route_stands_beside_what_it_holds(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    alter_status(page, {"held": 12, "max_rate": 0.25})
    row = page.page.get_by_role("row", name=re.compile("^orders"))
    expect(row.locator("td", has_text="held 12")).to_contain_text("max_rate 0.25/s")
    page.go("#/routes")
    expect(page.page.locator("dl.facts div", has_text="Rate limit").first).to_contain_text("0.25/s")


def test_held_messages_are_named_where_nothing_is_late(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    tile = page.page.locator(".tile", has_text="Overdue")
    expect(tile).to_contain_text("nothing is late")
    alter_status(page, {"held": 1590, "oldest_held_ms": 636_000})
    expect(tile).to_contain_text("held 1,590 · oldest 10m 36s")


def test_the_shards_of_an_instance_are_listed_or_none(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(f"{url}#/instances")
    fact = page.page.locator("dl.facts div", has_text="Shards").first
    expect(fact).to_contain_text("0, 1, 2, 3")

    def without(asked: Any) -> None:
        found = asked.fetch()
        instances = [each | {"shards": []} for each in found.json()["instances"]]
        asked.fulfill(response=found, json=found.json() | {"instances": instances})

    page.page.route("**/api/v1/instances*", without)
    expect(fact).to_contain_text("none")


def test_what_postdate_said_before_it_fell_silent_is_not_shown_and_no_name_comes_twice(
    open_page: OpenPage, url: str
) -> None:
    page = open_page(url)
    page.says("All well")
    texts = {"parent": "parent: it is stopping", "a-1": "a-1: it is stopping", "store": "Redis does not answer"}
    troubles = [{"instance": "", "subject": subject, "text": text} for subject, text in texts.items()]
    answer = {
        "detail": "Trouble: it ends.",
        "sentence": "Trouble: it ends.",
        "role": "admin",
        "level": "FAIL",
        "troubles": troubles,
    }
    page.page.route("**/api/v1/status*", lambda asked: asked.fulfill(status=503, json=answer))
    lines = page.page.locator(".verdict.bad li")
    expect(lines).to_have_text(["parent: it is stopping", "a-1: it is stopping", "store: Redis does not answer"])
    page.page.unroute("**/api/v1/status*")
    page.page.route("**/api/v1/status*", lambda asked: asked.abort())
    expect(page.page.locator(".verdict.bad", has_text="postdate does not answer")).to_be_visible()
    expect(lines).to_have_count(0)
    page.wrong = [text for text in page.wrong if "ERR_FAILED" not in text]


def test_of_a_message_that_left_the_page_says_what_is_not_kept_and_lists_its_id_once(
    open_page: OpenPage, url: str, world: World
) -> None:
    shards = [shard for bridge in world.bridges.values() for shard in bridge.store.memory.shards]
    row = next(row for shard in shards for row in shard.history if not row.key and row.late_ms is not None)
    for shard in shards:
        shard.history = [other for other in shard.history if other is row]
    left = row.id.decode()
    page = open_page(url)
    page.go("#/messages?state=history")
    expect(page.page.get_by_text(left)).to_have_count(1)
    page.go(f"#/messages/{left}")
    expect(page.page.get_by_text(re.compile("^Not kept after it left the store"))).to_have_count(2)


def test_a_message_that_is_due_this_moment_is_overdue_nowhere_and_later_everywhere(
    open_page: OpenPage, url: str
) -> None:
    page, late = open_page(url), {"overdue": 3, "oldest_overdue_ms": 34}
    alter_status(page, late)
    tile = page.page.locator(".tile", has_text="Overdue")
    chart = page.page.locator(".timeline .chart")
    rows = page.page.locator("table.routes")
    expect(page.page.locator(".tile.bad")).to_have_count(0)
    expect(tile).to_contain_text("nothing is late")
    assert "overdue" not in (chart.get_attribute("aria-label") or "")
    expect(rows).not_to_contain_text("overdue")
    page.go("#/routes")
    expect(page.page.locator("dd.bad, dd .bad")).to_have_count(0)
    late["oldest_overdue_ms"] = 1_000
    expect(page.page.locator("dd .bad", has_text="3, oldest 1s").first).to_be_visible()
    page.go("")
    expect(tile).to_contain_text("oldest 1s")
    expect(tile.locator("strong")).to_have_text("3")
    expect(chart).to_have_attribute("aria-label", re.compile("overdue 3"))
    expect(rows.get_by_text("overdue 1s")).to_have_count(5)
