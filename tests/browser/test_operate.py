"""An operator's work in a browser, on a running bridge with RabbitMQ, Kafka and Redis."""

from __future__ import annotations

import json
import re
import struct
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bridge_line import QUICK, merged
from tests.browser.conftest import OpenPage
from tests.browser.watch import SCREENS, Watched
from tests.delay_line import Line
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import HttpLine
from tests.unit.raw_properties import Props

pytestmark = [
    pytest.mark.long,
    pytest.mark.redis,
    pytest.mark.rabbitmq,
    pytest.mark.kafka,
    pytest.mark.timeout(300),
]


@dataclass
class Plant:
    """A running bridge with the routes orders (RabbitMQ) and payments (Kafka)."""

    line: Line
    url: str

    def send(self, route: str, after: str, key: str = "", **more: Any) -> str:
        """Park a message over the API; return its id."""
        place = {"routing_key": "new"} if route == "orders" else {"record_key": "k"}
        found: str = self.ask(
            "POST", "messages", {"route": route, "body": "{}", "in": after, "key": key, **place, **more}
        )["id"]
        return found

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(f"{self.url}api/v1/{path}", method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, None if body is None else json.dumps(body).encode(), 10) as answer:
            return json.load(answer)

    def state(self, message_id: str) -> str:
        return str(self.ask("GET", f"messages/{message_id}")["message"]["state"])


def started(line: Line, http: HttpLine, path: str = "/") -> Plant:
    line.bridge().start()
    http.wait("/readyz", 200, 60)
    return Plant(line, f"http://127.0.0.1:{http.port}{path}")


@pytest.fixture(scope="module")
def settings(kafka: Kafka) -> Iterator[dict[str, Any]]:
    topic = kafka_admin.create_topic(kafka.url, 1)
    route = {"broker": "kafka", "intercept": f"{topic}.delay", "deliver_to": topic}
    mine = {"kafka": {"bootstrap_servers": kafka.url, "group": topic}, "routes": {"payments": route}}
    yield merged(QUICK, mine)
    kafka_admin.delete_topics(
        kafka.url, [found_topic for found_topic in kafka_admin.topics(kafka.url) if found_topic.startswith(topic)]
    )


@pytest.fixture(scope="module")
def plant(
    rabbitmq: RabbitMQ, redis_server: Redis, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    if redis_server.owned:
        redis_server.wipe()
    http, folder = HttpLine(), tmp_path_factory.mktemp("plant")
    journal = {"journal": {"url": f"sqlite:///{folder}/journal.db"}}
    with Line(rabbitmq.url, redis_server.url, folder, merged(merged(settings, http.settings), journal)) as line:
        yield started(line, http)


def confirm(page: Watched, name: str, reason: str = "tidy up") -> None:
    """Give the reason in the open dialog, and press its button."""
    dialog = page.page.locator("dialog")
    dialog.get_by_label("Reason").fill(reason)
    dialog.locator("button[type=submit]", has_text=name).click()


def test_the_overview_shows_both_brokers(open_page: OpenPage, plant: Plant) -> None:
    plant.send("orders", "2m")
    plant.send("payments", "2m")
    page = open_page(plant.url)
    page.says("All well")
    for route in ("orders", "payments"):
        page.page.locator("tr", has_text=route).get_by_text("running").wait_for()
    page.page.locator(".timeline canvas").wait_for()
    parked = page.page.locator(".tile", has_text="Parked").locator("strong")
    wait_for(lambda: int(parked.inner_text()) >= 2, "the tile counts both messages")


def test_many_messages_are_cancelled_by_a_filter_after_a_dry_run(open_page: OpenPage, plant: Plant) -> None:
    meant = [plant.send("orders", "5h", "spam") for _ in range(1)] + [plant.send("orders", "3h") for _ in range(30)]
    kept = plant.send("payments", "3h")
    page = open_page(f"{plant.url}#/messages?route=orders&due=custom&due_after=2026-01-01T00:00:00Z")
    page.page.goto(f"{plant.url}#/messages?route=orders")
    page.rows().first.wait_for()
    page.button("Select all matching").click()
    page.button("Cancel …").click()
    page.page.locator("dialog .sample p").first.wait_for()
    count = int(re.findall(r"\d+", page.page.locator("dialog h2").inner_text())[0])
    assert count >= len(meant)
    assert all(plant.state(message_id) == "parked" for message_id in meant)  # a dry run changes nothing
    confirm(page, "Cancel")
    page.page.locator("dialog").get_by_text("Done").wait_for()
    page.page.keyboard.press("Escape")
    page.says("No message matches this filter")
    assert plant.state(kept) == "parked"
    page.go(SCREENS["operations"])
    page.page.locator("tbody tr", has_text="tidy up").locator(".badge", has_text="done").first.wait_for()


def test_a_cancel_is_undone_by_its_link(open_page: OpenPage, plant: Plant) -> None:
    message_id = plant.send("orders", "4h", "undone")
    page = open_page(f"{plant.url}#/messages/{message_id}")
    page.button("Cancel …").click()
    confirm(page, "Cancel message")
    wait_for(lambda: plant.state(message_id) == "cancelled", "it is cancelled")
    page.button("Undo").click()
    page.page.locator("dialog").get_by_text("Done").wait_for()
    assert plant.state(message_id) == "parked"


def test_a_cancelled_message_is_restored_after_a_dry_run(open_page: OpenPage, plant: Plant) -> None:
    message_id = plant.send("orders", "4h", "by-mistake")
    plant.ask("DELETE", f"messages/{message_id}")
    page = open_page(plant.url)
    page.go(SCREENS["operations"])
    page.button("Restore …").click()
    dialog = page.page.locator("dialog")
    dialog.get_by_text("No message matches").wait_for()
    dialog.get_by_label("Key").fill("by-mistake")
    dialog.get_by_label("Also what was cancelled or replaced").check()
    dialog.locator("h2", has_text="Restore: 1 messages?").wait_for()
    assert plant.state(message_id) == "cancelled"  # a dry run changes nothing
    confirm(page, "Restore", "cancelled by mistake")
    dialog.get_by_text("Done").wait_for()
    assert plant.state(message_id) == "parked"
    page.page.keyboard.press("Escape")
    page.page.locator("tbody tr", has_text="cancelled by mistake").locator(".badge", has_text="done").first.wait_for()


def test_a_message_is_rescheduled_from_its_own_page(open_page: OpenPage, plant: Plant) -> None:
    message_id = plant.send("payments", "1h", "bill-7")
    before = plant.ask("GET", f"messages/{message_id}")["message"]["due_ms"]
    page = open_page(f"{plant.url}#/messages/{message_id}")
    page.button("Reschedule …").click()
    request = page.page.locator(".command code", has_text="curl -X PATCH")
    assert """-d '{"in":"1h"}'""" in request.inner_text(), "until a moment is chosen"
    page.page.locator("dialog input[list=delays]").fill("6h")
    confirm(page, "Reschedule", "customer asked")
    page.says("rescheduled")
    after = plant.ask("GET", f"messages/{message_id}")["message"]["due_ms"]
    assert 4.9 * 3_600_000 < after - before < 5.1 * 3_600_000
    page.go(SCREENS["audit"])
    page.says("customer asked")


def test_a_dead_letter_is_retried_by_its_reason_and_delivered(open_page: OpenPage, plant: Plant) -> None:
    plant.line.publish(Props([(b"x-delay", "S", struct.pack(">I", 8) + b"tomorrow")]), b"late")
    wait_for(lambda: plant.line.dead(), "a dead letter")
    page = open_page(f"{plant.url}#/messages?state=dead")
    page.page.get_by_role("button", name="Retry all with reason bad_header").click()
    page.page.locator("dialog .sample p").first.wait_for()
    confirm(page, "Retry")
    page.page.locator("dialog").get_by_text("Done").wait_for()
    assert [message.body for message in plant.line.receive(1)] == [b"late"]


def test_a_paused_route_holds_its_messages_until_it_is_resumed(open_page: OpenPage, plant: Plant) -> None:
    page = open_page(f"{plant.url}#/routes")
    page.button("Pause route orders").click()
    confirm(page, "Pause route")
    page.page.get_by_text("paused", exact=True).first.wait_for()
    message_id = plant.send("orders", "4s", "held-1")  # every instance follows within about a second
    wait_for(lambda: plant.ask("GET", f"messages/{message_id}")["message"]["held"], "the message is held")
    page.go(f"#/messages/{message_id}")
    page.says("held: route paused or at max_rate")
    page.go(SCREENS["routes"])
    page.button("Resume route orders").click()
    confirm(page, "Resume route")
    assert len(plant.line.receive(1)) == 1


def test_a_delivered_message_is_found_by_its_key(open_page: OpenPage, plant: Plant) -> None:
    plant.send("payments", "0s", "found-9")
    page = open_page(plant.url)
    box = page.page.locator("#search")

    def seen() -> bool:
        box.fill("found-9")
        box.press("Enter")
        return page.page.locator(".found .badge", has_text="delivered").count() > 0

    wait_for(seen, "the history has it", 20)
    page.page.locator(".found a.open").first.click()
    page.page.locator(".step.confirmed").wait_for()
    box.fill("never-sent")
    box.press("Enter")
    page.says("not seen in the last")


def test_a_message_is_sent_from_the_page(open_page: OpenPage, plant: Plant) -> None:
    page = open_page(f"{plant.url}#/send")
    page.page.get_by_label("Route").select_option("payments")
    page.page.get_by_role("textbox", name="Key to cancel").fill("from-the-page")
    page.page.locator("input[list=delays]").fill("1h")
    page.button("Send").click()
    page.says("Life line")
    assert [message["key"] for message in plant.ask("GET", "messages?key=from-the-page")["messages"]] == [
        "from-the-page"
    ]


def test_every_screen_opens_on_a_running_bridge_and_axe_finds_nothing(
    open_page: OpenPage, plant: Plant, axe: str
) -> None:
    plant.send("orders", "30m", "order-1")
    page = open_page(plant.url)
    found, troubles = {}, {}
    for name, place in SCREENS.items():
        page.go(place)
        found[name] = page.findings(axe)
        troubles[name] = page.page.locator(".trouble").all_inner_texts()
    assert {name: some for name, some in {**found, **troubles}.items() if some} == {}


def test_the_page_works_under_a_prefix(
    open_page: OpenPage, rabbitmq: RabbitMQ, redis_server: Redis, settings: dict[str, Any], tmp_path: Path
) -> None:
    http = HttpLine()
    own = merged(settings, merged(http.settings, {"http": {"base_path": "/ops/delay"}}))
    with Line(rabbitmq.url, redis_server.url, tmp_path, own) as line:
        plant = started(line, http, "/ops/delay/")
        plant.send("orders", "1h", "order-1")
        for address in (plant.url, plant.url.rstrip("/")):
            page = open_page(address)
            page.says("All well")
            page.page.get_by_role("link", name="Messages").first.click()
            page.page.get_by_role("link", name="order-1").click()
            page.says("Life line")
            assert "/ops/delay" in page.page.url
            page.page.close()
