"""A page in a browser, and everything that went wrong on it."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Locator, Page, Request

#: Chromium logs each answer of 400 and more. The tests ask for some, such as 401 and 409, on purpose.
_ANSWERS = "Failed to load resource: the server responded with a status of"

#: What is due in this frame is drawn with the next one; effects run after that.
_TWO_FRAMES = """() => new Promise((done) => {
    const frames = (left) => (left ? requestAnimationFrame(() => frames(left - 1)) : setTimeout(done));
    frames(2);
})"""

SCREENS = {
    "overview": "",
    "parked": "#/messages",
    "dead": "#/messages?state=dead",
    "history": "#/messages?state=history",
    "search": "#/search?q=no-such-key",
    "routes": "#/routes",
    "levels": "#/levels",
    "instances": "#/instances",
    "operations": "#/system",
    "audit": "#/system?tab=audit",
    "doctor": "#/system?tab=doctor",
    "settings": "#/system?tab=settings",
    "about": "#/system?tab=about",
    "send": "#/send",
}


class Watched:
    """A page. ``wrong`` has its console errors, broken rules of the content security policy, and foreign requests."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url.partition("#")[0]
        self.wrong: list[str] = []
        self._host = urlsplit(url).netloc
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("request", self._request)
        self._asked: set[Request] = set()
        page.on("requestfinished", lambda request: self._asked.discard(request))
        page.on("requestfailed", lambda request: self._asked.discard(request))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_ANSWERS):
            self.wrong.append(f"console {message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        self._asked.add(request)
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.netloc != self._host:
            self.wrong.append(f"request to another host: {request.url}")

    def go(self, place: str) -> None:
        """Show a screen by its fragment, and wait until it shows the answers to all that it asks for."""
        self.page.goto(f"{self.url}{place}")
        self.page.wait_for_selector("main h1, main .title", state="attached")
        self.settle()

    def settle(self) -> None:
        """Wait until the page shows the answers to all its requests.

        The load state "networkidle" does not help: a change of the fragment loads nothing, so it is there already, and
        the previous list is still shown, dimmed.
        """
        self.page.evaluate(_TWO_FRAMES)  # the page follows the new address, and asks
        self.answered()
        self.page.evaluate(_TWO_FRAMES)  # it shows the last answer

    def answered(self) -> None:
        """Wait until there is an answer to each request."""
        give_up = time.monotonic() + 15
        while self._asked:
            assert time.monotonic() < give_up, f"no answer to {[request.url for request in self._asked]}"
            self.page.wait_for_timeout(20)

    def stop_clock(self) -> None:
        """Stop a clock that `open_page` has installed, and wait until the page shows the answers to its requests."""
        self.page.clock.pause_at((self.page.evaluate("Date.now()") + 10_000) / 1000)  # not before it arrives there
        self.answered()
        self.page.clock.run_for(100)
        self.answered()

    def rows(self) -> Locator:
        """The rows of the list of messages."""
        return self.page.locator("tr.row")

    def button(self, name: str) -> Locator:
        """A button by its exact name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def field(self, name: str) -> Locator:
        """An input by its label."""
        return self.page.get_by_label(name)

    def says(self, text: str, timeout_s: float = 15.0) -> None:
        """Wait until the page shows this text."""
        self.page.get_by_text(text).first.wait_for(timeout=timeout_s * 1000)

    def findings(self, axe: str) -> list[str]:
        """What axe finds on the page as it is now: rule, element and reason."""
        self.page.evaluate(axe)
        found: dict[str, Any] = self.page.evaluate("axe.run()")
        return [
            f"{violation['id']}: {node['html'][:160]} ({node['failureSummary'][:200]})"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]
