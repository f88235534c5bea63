"""The canary: a delayed message of postdate's own, through each broker and back. It shows that postdate delivers.

It proves more than connections: the broker takes it, postdate parks it in the store, claims it when it is due, and a
consumer gets it. Its lateness is measured by one clock, from publish to arrival, less the delay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from bridge.app.brokers import broker_of
from bridge.core.errors import BrokerUnavailable, PostdateError
from bridge.desk.severity import CheckResult, fail, failed, ok
from bridge.desk.topology import Standing
from bridge.settings import Settings
from bridge.settings.model import TITLES, BrokerKind, Canary
from bridge.settings.process_plan import canary_brokers, canary_settings

log = structlog.get_logger("postdate")

#: A canary that has not come back so long after its due moment (s) counts as lost.
LOST_S = 10.0
#: A canary that comes back so much later (s) than it should is missing meanwhile.
_SLOW_S = 5.0
#: After one that did not come back, the next is sent so soon (s): the trouble ends with the first that does.
_AGAIN_S = 1.0
#: After this many intervals without a success the canary is overdue, and the instance not ready.
_MISSED = 3


def prepare_canary(settings: Settings, kind: BrokerKind) -> str:
    """Declare what the canary of a broker needs, if postdate may. Return why there is no canary; "" if it is there.

    Blocking. ``settings.bridge.setup`` off: nothing is declared, and all of it must exist. Raises
    ``BrokerUnavailable``.
    """
    broker, own = broker_of(kind), canary_settings(settings, kind)
    try:
        if settings.bridge.setup:
            broker.canary.declare_canary(own)
            return ""
        missing = [
            str(finding.part.name) for finding in broker.topology.verify(own) if finding.state is not Standing.SAME
        ]
    except BrokerUnavailable:
        raise
    except PostdateError as error:
        return str(error)
    return f"missing: {', '.join(missing)}. Run `postdate setup`" if missing else ""


def probe(settings: Settings) -> list[CheckResult]:
    """Send a canary through each broker, for `postdate doctor --probe`. Blocking, some seconds."""
    return [_probed(settings, kind) for kind in canary_brokers(settings)]


def _probed(settings: Settings, kind: BrokerKind) -> CheckResult:
    subject = f"canary of {TITLES[kind]}"
    try:
        own, delay_ms = canary_settings(settings, kind), settings.canary.delay
        late_s = broker_of(kind).canary.round_trip(own, delay_ms, LOST_S, lambda: None)
    except PostdateError as error:
        return failed(subject, error)
    if late_s is None:
        text = f"a message did not come back within {LOST_S:.0f} s of its due moment"
        advice = "An instance of `postdate run` with canary.enabled must run on this broker and store. Read its log"
        return fail(subject, text, advice=advice)
    return ok(subject, f"a message came back {late_s * 1000:.0f} ms late")


@dataclass(slots=True)
class CanaryState:
    """What is known of one broker's canary. ``late_s`` is the lateness of the last one that came back.

    Moments are seconds of the monotonic clock. ``trouble`` is why the last one did not come back, "" if it did.
    """

    broker: BrokerKind
    started_s: float
    late_s: float | None = None
    success_s: float | None = None
    trouble: str = ""
    #: When the last one did not come back, while ``trouble`` says why.
    tried_s: float | None = None
    #: When the one that is under way was sent; None for none.
    sent_s: float | None = None
    #: Whether ``trouble`` kept it from being sent.
    unsent: bool = False

    def sent(self) -> None:
        """Note that the broker has the one that is under way: what kept the last one from being sent is over."""
        if self.unsent:
            self.trouble, self.unsent = "", False

    def missing(self, rules: Canary, now_s: float) -> str:
        """Return why the latest canary is missing; "" if it came back, or its time is not over."""
        patience_s = (rules.every + rules.delay) / 1000 + _SLOW_S
        late = now_s - (self.started_s if self.success_s is None else self.success_s) >= patience_s
        if self.sent_s is not None and not self.trouble:
            flies_s = now_s - self.sent_s
            return f"it has been under way for {flies_s:.0f} s" if flies_s >= rules.delay / 1000 + _SLOW_S else ""
        return self.trouble or (f"none for {patience_s:.0f} s" if late else "")

    def arrives(self, rules: Canary, now_s: float) -> bool:
        """Return whether the last one that came back is so new that canaries arrive now. One may be under way after
        an outage: it is not missing, and proves nothing yet."""
        fresh_s = (rules.every + rules.delay) / 1000 + LOST_S
        return self.success_s is not None and now_s - self.success_s <= fresh_s


class Canaries:
    """Sends a canary through each broker every ``canary.every``."""

    def __init__(
        self,
        settings: Settings,
        brokers: Iterable[BrokerKind],
        fly: Callable[[BrokerKind, Callable[[], None]], Awaitable[float | None]] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``fly(broker, sent)`` calls ``sent`` when the broker has the canary. It returns how late (s) it came, None
        for a lost one; by default it is a real one."""
        self._settings = settings
        self._fly = fly or self._round_trip
        self._now_s = now_s
        self._states = {kind: CanaryState(kind, now_s()) for kind in brokers}

    def states(self) -> Sequence[CanaryState]:
        return list(self._states.values())

    def overdue(self) -> str:
        """Return the sentence about canaries without a success for three intervals; "" if there is none."""
        patience_s = _MISSED * self._settings.canary.every / 1000 + LOST_S
        late = [
            state
            for state in self._states.values()
            if self._now_s() - (state.success_s or state.started_s) > patience_s
        ]
        return "; ".join(
            f"no canary of {TITLES[state.broker]} came back: {state.trouble or 'none was sent'}" for state in late
        )

    async def run(self) -> None:
        await asyncio.gather(*(self._run(state) for state in self._states.values()))

    async def _run(self, state: CanaryState) -> None:
        while True:
            began_s = self._now_s()
            await self.once(state)
            await asyncio.sleep(max(0.1, self.pause_s(state) - (self._now_s() - began_s)))

    def pause_s(self, state: CanaryState) -> float:
        """Return how long after a canary the next one is sent."""
        every_s = self._settings.canary.every / 1000
        return min(every_s, _AGAIN_S) if state.trouble else every_s

    async def once(self, state: CanaryState) -> None:
        """Send one canary and note what became of it. The log gets a line when that changes."""
        before, state.sent_s = state.trouble, self._now_s()
        try:
            late_s = await self._fly(state.broker, state.sent)
        except PostdateError as error:
            late_s, state.trouble, state.unsent = None, str(error), True
        else:
            lost = f"it did not come back within {LOST_S:.0f} s of its due moment"
            state.trouble, state.unsent = lost if late_s is None else "", False
        finally:
            state.sent_s = None
        state.tried_s = self._now_s() if state.trouble else None
        if late_s is not None:
            state.late_s, state.success_s = late_s, self._now_s()
        if state.trouble and state.trouble != before:
            log.warning("canary", broker=state.broker, what=state.trouble)
        elif before and not state.trouble:
            log.info("canary came back", broker=state.broker, late_ms=round((late_s or 0.0) * 1000, 1))

    async def _round_trip(self, kind: BrokerKind, sent: Callable[[], None]) -> float | None:
        own, delay_ms = canary_settings(self._settings, kind), self._settings.canary.delay
        return await asyncio.to_thread(broker_of(kind).canary.round_trip, own, delay_ms, LOST_S, sent)
