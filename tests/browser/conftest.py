"""Fixtures of the browser tests: a browser, a page that notes everything wrong, and the stand-in for the API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.stand_in import World, app_of
from tests.browser.watch import Watched
from tests.devstack import browser as browsers
from tests.devstack.fixtures import in_ci, need
from tests.devstack.service import free_ports, wait_for

#: The page turns in a second or two; a busy machine needs more.
PATIENCE_MS = 15_000
expect.set_options(timeout=PATIENCE_MS)

OpenPage = Callable[..., Watched]
Serve = Callable[[World], str]


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
    if "stand_in" in request.fixturenames:  # it ends after the pages, which would note that it is gone
        request.getfixturevalue("stand_in")
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
        one = Watched(page, url)
        watched.append(one)
        if clock:
            page.clock.install()
        page.goto(url)
        return one

    yield start
    for context in contexts:
        context.close()
    assert [text for one in watched for text in one.wrong] == []


@contextmanager
def served(world: World) -> Iterator[str]:
    """The stand-in behind a free port; its address."""
    (port,) = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app_of(world), host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started, "the stand-in listens")
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def world() -> World:
    """What the stand-in knows; a test changes it before it opens a page."""
    return World()


@pytest.fixture
def stand_in(world: World) -> Iterator[str]:
    """The address of the stand-in."""
    with served(world) as address:
        yield address
