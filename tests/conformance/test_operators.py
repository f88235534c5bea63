"""Both operators keep the promises of ``OperatorSuite``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bridge.core.orders import Actor
from bridge.operate.local import LocalOperator
from bridge.operate.operator import Operator
from bridge.operate.remote import ApiAddress, HttpOperator, client_of
from tests.api import ADMIN, api, settings
from tests.conformance.cold_rig import ColdStores
from tests.conformance.operator_suite import OperatorRig, OperatorSuite

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


class TestLocalOperator(OperatorSuite):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[OperatorRig]:
        async with api() as client:
            operator: Operator = LocalOperator(client.stores, settings(), Actor("anna", "cli"))
            yield OperatorRig(operator, client)
            await operator.close()


class TestColdOperator(OperatorSuite):
    """All that is sent for later waits in the journal alone."""

    tier = "cold"

    @pytest.fixture
    async def rig(self) -> AsyncIterator[OperatorRig]:
        async with api(stores=ColdStores()) as client:
            operator: Operator = LocalOperator(client.stores, settings(), Actor("anna", "cli"))
            yield OperatorRig(operator, client)
            await operator.close()


class TestHttpOperator(OperatorSuite):
    @pytest.fixture
    async def rig(self) -> AsyncIterator[OperatorRig]:
        async with api() as client:
            transport = client.client._transport
            operator: Operator = HttpOperator(client_of(ApiAddress("http://localhost:8480", ADMIN), transport))
            yield OperatorRig(operator, client)
