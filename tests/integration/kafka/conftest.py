"""Separate topics for each test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.devstack.kafka import Kafka
from tests.integration.kafka.rig import Topics


@pytest.fixture
async def topics(kafka: Kafka) -> AsyncIterator[Topics]:
    """Makes topics that belong to one test alone."""
    async with Topics(kafka.url, f"t{secrets.token_hex(6)}") as made:
        yield made
