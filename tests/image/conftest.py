"""Engines for the container tests, with the images that they need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.devstack import images, podman
from tests.devstack.engine import Engine, docker
from tests.devstack.fixtures import need
from tests.devstack.service import Unavailable


@pytest.fixture(scope="session")
def postdate_image() -> str:
    """postdate's image, built from this checkout."""
    need(images.build_postdate)
    return images.POSTDATE


@pytest.fixture(scope="session")
def engine(postdate_image: str) -> Iterator[Engine]:
    """An engine whose containers share the network of this machine with the devstack's servers."""
    with ExitStack() as opened:
        yield need(lambda: _open(opened, private_network=False))


@pytest.fixture
def walled_engine(postdate_image: str) -> Iterator[Engine]:
    """An engine for a whole compose project. Under podman its network is apart from the machine's."""
    with ExitStack() as opened:
        yield need(lambda: _open(opened, private_network=True))


def _open(opened: ExitStack, private_network: bool) -> Engine:
    try:
        return docker()
    except Unavailable:
        return opened.enter_context(podman.room(private_network))
