"""The page opens in a real browser, shows the overview, and cancels a message."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.world import World

pytestmark = pytest.mark.slow


def test_the_page_shows_what_waits_and_cancels_a_message(open_page: OpenPage, url: str, world: World) -> None:
    page = open_page(url)
    page.says("All well")
    expect(page.page.locator(".tile")).to_have_count(6)
    page.page.locator(".timeline canvas").wait_for()
    page.page.get_by_role("link", name="Messages").first.click()
    message_id = page.rows().nth(20).get_attribute("data-id")
    page.page.locator(f"tr[data-id='{message_id}']").get_by_role("button", name="Cancel").click()
    page.field("Reason").fill("ordered twice")
    page.page.locator("dialog").get_by_role("button", name="Keep", exact=True).click()
    assert message_id in world.ids_of("parked")
    page.page.locator(f"tr[data-id='{message_id}']").get_by_role("button", name="Cancel").click()
    page.field("Reason").fill("ordered twice")
    page.page.locator("dialog").get_by_role("button", name="Cancel message", exact=True).click()
    page.says("cancelled")
    assert [entry.reason for entry in world.memory.audit] == ["ordered twice"]
    assert message_id not in world.ids_of("parked")
