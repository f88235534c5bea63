"""Fixtures of the browser tests: a browser, a page that notes everything wrong, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.watch import Watched
from tests.browser.world import World
from tests.devstack import browser as browsers
from tests.devstack.fixtures import in_ci, need
from tests.http_server import serving

#: The page turns in a second or two; a busy machine needs more.
PATIENCE_MS = 15_000
expect.set_options(timeout=PATIENCE_MS)

OpenPage = Callable[..., Watched]


# Of one module only: Playwright's loop would be in the way of the asynchronous tests of others.
@pytest.fixture(scope="module")
def chromium(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """A browser. A short test does not install one, except in CI."""
    if in_ci() or request.node.get_closest_marker("long"):
        path = need(browsers.find_chromium)
    elif (found := browsers.installed_chromium()) is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    else:
        path = found
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(path))
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe."""
    return need(browsers.find_axe)


@pytest.fixture
def open_page(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """`open_page(url, width=360, scheme="dark")`. At the end nothing may have been noted on any of the pages.

    ``clock``: a test may stop the page's clock and move it on.
    """
    if "world" in request.fixturenames:  # it ends after the pages, which would note that it is gone
        request.getfixturevalue("world")
    contexts: list[BrowserContext] = []
    watched: list[Watched] = []

    def start(url: str, width: int = 1280, height: int = 800, scheme: str = "light", clock: bool = False) -> Watched:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            accept_downloads=True,
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page: Page = context.new_page()
        tab = Watched(page, url)
        watched.append(tab)
        if clock:
            page.clock.install()
        page.goto(url)
        return tab

    yield start
    for context in contexts:
        context.close()
    assert [text for tab in watched for text in tab.wrong] == []


@pytest.fixture
def world() -> Iterator[World]:
    """An installation in memory, which is served."""
    installation = World()
    with serving(installation.server, installation.serve) as port:
        installation.url = f"http://127.0.0.1:{port}/"
        yield installation


@pytest.fixture
def url(world: World) -> str:
    """The address of its page."""
    return world.url
