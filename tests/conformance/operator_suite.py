"""What every operator does, at the stores and over the API. Each test is a promise of ``bridge.operate.operator``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from bridge.core.errors import FINE, NOT_FOUND, REFUSED, NotFound, Refused, SettingsError
from bridge.core.journal import UNDONE, JournalFilter, Written
from bridge.core.orders import RouteState
from bridge.core.state import State
from bridge.desk.past import PastFilter
from bridge.desk.payload import Draft
from bridge.desk.rows import Filter
from bridge.operate.bulk import Selection
from bridge.operate.documents import OperationFacts, PastMessage
from bridge.operate.find import Criteria
from bridge.operate.operator import Operator
from bridge.operate.verbs import CANCEL, DELIVER, RESCHEDULE, RETRY, VERBS, Verb
from bridge.pipeline.restore import RestoreOrder
from tests.api import HOUR_MS, Api

GONE = "1gd4r5kq2000ab3c9d00"
IN_AN_HOUR = (HOUR_MS, True)


@dataclass
class OperatorRig:
    """An operator, and the API over the same store to bring messages into a state."""

    operator: Operator
    client: Api

    async def send(self, body: bytes = b"{}", key: str = "", **headers: str) -> str:
        draft = Draft(body, headers, "new")
        return (await self.operator.send("orders", draft, key, IN_AN_HOUR))[0].id

    async def ended(self, operation: str) -> OperationFacts:
        async with asyncio.timeout(20):
            while True:
                if (found := await self.operator.operation(operation)).state != "running":
                    return found
                await asyncio.sleep(0.01)  # it runs in the background


async def listed(operator: Operator, state: State = State.PARKED, wanted: Criteria | None = None) -> list[str]:
    return [message.id async for message in operator.messages(state, wanted or Criteria())]


class OperatorSuite:
    """Subclasses have a fixture ``rig``. ``tier``: where what was sent waits."""

    tier = "redis"

    # -- sending and reading ------------------------------------------------------------------------------------------

    async def test_a_sent_message_is_listed_found_and_shown_with_what_was_sent(self, rig: OperatorRig) -> None:
        message_id = await rig.send(b'{"n": 1}', "order-1", tenant="a")
        (message,) = [message async for message in rig.operator.messages(State.PARKED, Criteria())]
        assert (message.id, message.state, message.route) == (message_id, "parked", "orders")
        assert message.tier == self.tier
        assert (message.key, message.routing_key, message.tries) == ("order-1", "new", 0)
        assert await rig.operator.ids_of_key(b"order-1", "orders") == [message_id]
        assert [found.id for found in (await rig.operator.search("order-1", None)).found] == [message_id]
        details = await rig.operator.show(message_id)
        assert details.message == message
        assert (details.body.text, details.body.truncated) == ('{"n": 1}', False)
        assert (details.headers or {})["tenant"] == "a"
        assert [event.what for event in details.life] == ["received", "due"]

    async def test_a_long_body_is_cut_unless_all_of_it_is_asked_for(self, rig: OperatorRig) -> None:
        body = bytes(range(256)) * 40
        message_id = await rig.send(body)
        details = await rig.operator.show(message_id)
        assert (details.body.size, details.body.truncated, details.body.raw) == (len(body), True, body[:4096])
        assert (await rig.operator.show(message_id, whole=True)).body.raw == body
        assert await rig.operator.body(message_id) == body

    async def test_a_list_by_header_key_or_route_has_only_what_matches(self, rig: OperatorRig) -> None:
        meant = await rig.send(key="order-1", tenant="a")
        other = await rig.send(tenant="b")
        bill = await rig.client.schedule(route="bills")
        assert await listed(rig.operator, wanted=Criteria(header=("tenant", "a"))) == [meant]
        assert sorted(await listed(rig.operator, wanted=Criteria(header=("tenant", "")))) == sorted([meant, other])
        assert await listed(rig.operator, wanted=Criteria(Filter(route="bills"))) == [bill]
        assert await listed(rig.operator, wanted=Criteria(Filter(route="orders", key=b"order-1"))) == [meant]

    async def test_pages_follow_each_other_to_the_end(self, rig: OperatorRig) -> None:
        ids = [await rig.send() for _ in range(5)]
        cursor, seen = None, []
        while True:
            page = await rig.operator.page(State.PARKED, Criteria(), cursor, 2)
            seen += [message.id for message in page.messages]
            if (cursor := page.next) is None:
                break
        assert sorted(seen) == sorted(ids)

    async def test_a_message_with_the_same_once_is_parked_once(self, rig: OperatorRig) -> None:
        draft = Draft(b"{}", {}, "new")
        first, fresh = await rig.operator.send("orders", draft, "", IN_AN_HOUR, "4711")
        again, fresh_again = await rig.operator.send("orders", draft, "", IN_AN_HOUR, "4711")
        assert (first, fresh, fresh_again) == (again, True, False)
        assert await listed(rig.operator) == [first.id]

    async def test_a_message_with_mistakes_is_refused(self, rig: OperatorRig) -> None:
        with pytest.raises(SettingsError, match=r"routing.key"):
            await rig.operator.send("orders", Draft(b"{}", {}), "", IN_AN_HOUR)
        with pytest.raises(SettingsError, match="x-delay"):
            await rig.operator.send("orders", Draft(b"{}", {"x-delay": "5m"}, "new"), "", IN_AN_HOUR)

    # -- what left the store ------------------------------------------------------------------------------------------

    async def test_a_message_that_left_is_known_from_the_history(self, rig: OperatorRig) -> None:
        message_id = await rig.send(key="order-1")
        await rig.operator.act(CANCEL, [message_id], reason="wrong price")
        details = await rig.operator.show(message_id)
        assert isinstance(details.message, PastMessage)
        assert (details.message.state, details.message.reason) == ("cancelled", "wrong price")
        assert "it was cancelled at" in details.body.hidden
        assert [entry.id async for entry in rig.operator.history(PastFilter(key=b"order-1"))] == [message_id]
        details = await rig.operator.show(message_id)
        assert details.message.state == "cancelled"
        assert [event.what for event in details.life] == ["received", "cancelled", "due"]
        page = await rig.operator.past_page(PastFilter(), None, 10)
        assert [entry.id for entry in page.messages] == [message_id]
        with pytest.raises(NotFound, match=f"cancelled at.*id {message_id}"):
            await rig.operator.ids_of_key(b"order-1", "orders")

    async def test_what_was_never_there_is_not_found(self, rig: OperatorRig) -> None:
        for ask in (rig.operator.show, rig.operator.body):
            with pytest.raises(NotFound, match="not seen in the last"):
                await ask(GONE)
        with pytest.raises(NotFound, match="No message has key 'order-1' on route 'orders': not seen in the last"):
            await rig.operator.ids_of_key(b"order-1", "orders")
        assert (await rig.operator.search(GONE, None)).text.startswith("not seen in the last")

    # -- verbs --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
    async def test_a_verb_changes_messages_in_its_states_and_says_what_they_are(
        self, rig: OperatorRig, verb: Verb
    ) -> None:
        message_id = await rig.send() if State.PARKED in verb.states else await rig.client.bury()
        due = IN_AN_HOUR if verb.takes_due else None
        (result,) = await rig.operator.act(verb, [message_id], due)
        becomes = verb.done if verb.becomes is State.GONE else verb.becomes.value
        assert (result.id, result.state, result.code) == (message_id, becomes, FINE)
        now_ms = await rig.operator.now_ms()
        if verb is RESCHEDULE:
            assert result.due_ms == now_ms + HOUR_MS
        elif verb.becomes is State.PARKED:
            assert (result.due_ms or 0) <= now_ms

    @pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
    async def test_a_refused_verb_says_why(self, rig: OperatorRig, verb: Verb) -> None:
        left = await rig.send()
        await rig.operator.act(CANCEL, [left])
        due = IN_AN_HOUR if verb.takes_due else None
        gone, cancelled = await rig.operator.act(verb, [GONE, left], due)
        assert (gone.state, gone.code, gone.text[:27]) == ("none", NOT_FOUND, "no message has this id: not")
        assert (cancelled.state, cancelled.code, cancelled.text[:16]) == ("cancelled", REFUSED, "it was cancelled")
        assert cancelled.at_ms is not None

    async def test_a_message_that_is_being_sent_is_refused_with_the_end_of_its_lease(self, rig: OperatorRig) -> None:
        message_id = await rig.client.schedule(after="0s")
        rig.client.stores.memory.clock.advance(10)  # type: ignore[attr-defined]
        await rig.client.claim(message_id)
        (result,) = await rig.operator.act(CANCEL, [message_id])
        assert (result.state, result.code, result.text[:20]) == ("claimed", REFUSED, "it is being sent now")
        assert result.lease_until is not None
        assert await listed(rig.operator, State.CLAIMED) == [message_id]

    async def test_a_due_moment_that_is_too_far_away_is_a_mistake(self, rig: OperatorRig) -> None:
        message_id = await rig.send()
        with pytest.raises(SettingsError, match=r"limits\.max_delay"):
            await rig.operator.act(RESCHEDULE, [message_id], (HOUR_MS * 24 * 40_000, True))

    async def test_many_messages_are_acted_on_after_a_preview(self, rig: OperatorRig) -> None:
        ids = sorted([await rig.send() for _ in range(7)])
        await rig.client.schedule(route="bills")
        chosen = Selection(wanted=Criteria(Filter(route="orders")))
        preview = await rig.operator.preview(CANCEL, chosen)
        assert (preview.count, preview.complete, len(preview.sample)) == (7, True, 5)
        assert sorted(await listed(rig.operator, wanted=chosen.wanted)) == ids
        begun = await rig.operator.bulk(CANCEL, chosen, reason="wrong campaign")
        ended = await rig.ended(begun.id)
        assert (ended.state, ended.done, ended.total, ended.reason) == ("done", 7, 7, "wrong campaign")
        assert [operation.id for operation in await rig.operator.operations()] == [begun.id]
        assert await listed(rig.operator, wanted=chosen.wanted) == []
        with pytest.raises(Refused, match="done already"):
            await rig.operator.stop(begun.id)
        with pytest.raises(NotFound, match="no such operation"):
            await rig.operator.stop("unknown")

    @pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
    async def test_a_verb_acts_on_all_that_match_a_filter_as_the_preview_counted_them(
        self, rig: OperatorRig, verb: Verb
    ) -> None:
        state = State.PARKED if State.PARKED in verb.states else State.DEAD
        for tenant in "aab":
            await (rig.send(tenant=tenant) if state is State.PARKED else rig.client.bury(headers={"tenant": tenant}))
        due = IN_AN_HOUR if verb.takes_due else None
        chosen = Selection(None, state, Criteria(header=("tenant", "a")))
        assert (await rig.operator.preview(verb, chosen, due)).count == 2
        ended = await rig.ended((await rig.operator.bulk(verb, chosen, due, 1000, "a note")).id)
        assert (ended.state, ended.done, ended.skipped, ended.reason) == ("done", 2, 0, "a note")
        now_ms = await rig.operator.now_ms()
        changed = [message async for message in rig.operator.messages(State.PARKED, chosen.wanted)]
        assert len(changed) == (0 if verb.becomes is State.GONE else 2)
        assert all(((message.due_ms or 0) <= now_ms) != verb.takes_due for message in changed)
        assert len(await listed(rig.operator, state)) == (1 if verb in (CANCEL, RETRY) else 3)

    async def test_a_cancelled_message_is_restored_from_the_journal_after_a_preview(self, rig: OperatorRig) -> None:
        order = RestoreOrder(JournalFilter((Written.WAITING, *UNDONE), "orders"))
        with pytest.raises(Refused, match=r"journal\.url"):
            await rig.operator.preview_restore(order)
        with pytest.raises(Refused, match=r"journal\.url"):
            await rig.operator.restore(order)
        rig.client.stores.journal = rig.client.stores.spare
        await rig.client.stores.write()
        message_id = await rig.send()
        await rig.client.stores.write()
        await rig.operator.act(CANCEL, [message_id])
        await rig.client.stores.write()
        preview = await rig.operator.preview_restore(order)
        assert (preview.count, preview.complete, preview.counts.parked, preview.counts.there) == (1, True, 1, 0)
        assert await listed(rig.operator) == []
        ended = await rig.ended((await rig.operator.restore(order, "a mistake")).id)
        assert (ended.verb, ended.state, ended.done, ended.reason) == ("restore", "done", 1, "a mistake")
        assert ended.counts == preview.counts
        assert await listed(rig.operator) == [message_id]
        with pytest.raises(SettingsError, match="is not configured"):
            await rig.operator.restore(RestoreOrder(JournalFilter(route="order")))

    async def test_dead_letters_are_retried_by_their_ids(self, rig: OperatorRig) -> None:
        dead = await rig.client.bury()
        results = await rig.operator.act(RETRY, [dead, GONE])
        assert [result.code for result in results] == [FINE, NOT_FOUND]
        assert await listed(rig.operator, State.DEAD) == []

    # -- routes and the system ----------------------------------------------------------------------------------------

    async def test_a_paused_route_is_paused_until_it_is_resumed(self, rig: OperatorRig) -> None:
        (paused,) = await rig.operator.order(["orders"], RouteState.PAUSED, "the bank is down")
        assert (paused.name, paused.state, paused.reason) == ("orders", "paused", "the bank is down")
        states = {route.name: route.state for route in await rig.operator.routes()}
        assert states == {"orders": "paused", "bills": "running"}
        (result,) = await rig.operator.act(DELIVER, [await rig.send()])
        assert result.text == "route orders is paused, so it waits until `postdate resume orders`"
        assert await rig.operator.routes_for(RouteState.RUNNING, None) == ["orders", "bills"]
        (resumed,) = await rig.operator.order(["orders"], RouteState.RUNNING)
        assert resumed.state == "running"

    async def test_an_unknown_route_is_a_mistake_and_takes_no_order(self, rig: OperatorRig) -> None:
        for names in (["order"], ["orders", "order"]):
            with pytest.raises(SettingsError, match=r"'order' is not configured\. Did you mean 'orders'"):
                await rig.operator.routes_for(RouteState.PAUSED, names)
        with pytest.raises(SettingsError, match=r"'order' is not configured\. Did you mean 'orders'"):
            await rig.operator.ids_of_key(b"order-1", "order")

    async def test_the_numbers_count_what_waits(self, rig: OperatorRig) -> None:
        await rig.send()
        dead = await rig.client.bury()
        found = await rig.operator.stats()
        assert (found.parked, found.dead, dead != "") == (1, 1, True)
        assert [(route.name, route.parked, route.dead) for route in found.routes] == [("orders", 1, 1)]
        assert found.sentence
        assert found.without_store == []

    async def test_the_audit_log_names_who_did_what_to_which_message(self, rig: OperatorRig) -> None:
        message_id = await rig.send()
        await rig.operator.act(CANCEL, [message_id], reason="wrong price")
        await rig.operator.order(["orders"], RouteState.PAUSED, "maintenance")
        entries = (await rig.operator.audit(10)).audit
        assert [(entry.verb, entry.what, entry.messages, entry.reason) for entry in entries] == [
            ("pause", "route orders", 0, "maintenance"),
            ("cancel", message_id, 1, "wrong price"),
            ("send", message_id, 1, ""),
        ]
        assert len({(entry.who, entry.via) for entry in entries}) == 1
        page = await rig.operator.audit(2)
        assert len(page.audit) == 2
        assert [entry.verb for entry in (await rig.operator.audit(10, page.audit[-1].id)).audit] == ["send"]
