"""Parks a message that no broker brought: ``postdate send``. The rules for keys are those of the way in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from bridge.core.errors import Refused, StoreUnavailable
from bridge.core.ports import Batch, Keyed, Store
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids, shard_for, shard_of


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be parked. ``order`` and ``on_same_key`` are the route's settings, ``order_key`` is the routing key or
    the Kafka key; a ``due_ms`` (Unix ms) that has passed means now; an empty ``key`` is none."""

    route: str
    order: str
    on_same_key: str
    order_key: bytes
    payload: bytes
    due_ms: int
    key: bytes


async def send(store: Store, ids: Ids, message: Message) -> bytes:
    """Park it, to the durability of the store; its id.

    Raises ``Refused`` where its key is parked and may not be replaced, and ``StoreUnavailable``: then it may have been
    parked all the same, and the sentence has its id.
    """
    now_ms = store.clock.now_ms()
    route = message.route.encode()
    shard = shard_for(_order(message), store.shards)
    message_id = ids.next(now_ms, shard)
    batch = Batch(store.new_token())
    due_ms = max(message.due_ms, now_ms)
    batch.messages.append((message_id, due_ms, seal(due_ms, now_ms, route, message.key, b"", message.payload)))
    if message.key:
        field = index_field(route, message.key)
        await _make_way(store, field, shard, message)
        # What is to be kept must be refused: a person who is told "parked" would look for this one.
        mode = "replace" if message.on_same_key == "replace" else "reject"
        batch.keyed.append(Keyed(1, field, mode))
    answer = (await store.park({shard: batch}))[shard]
    if isinstance(answer, StoreUnavailable):
        one = message_id.decode()
        raise StoreUnavailable(f"{answer}; it may be parked all the same: `postdate show {one}` tells") from answer
    if answer.rejected:
        raise _taken(message)
    return message_id


def _order(message: Message) -> bytes:
    if message.order == "key":
        return message.order_key
    return message.route.encode() if message.order == "route" else secrets.token_bytes(4)


async def _make_way(store: Store, field: bytes, shard: int, message: Message) -> None:
    """The park script sees only its own shard, so what stands under the key in another one is dealt with first."""
    elsewhere = [one for one in (await store.find([field]))[field].ids if shard_of(one) != shard]
    if message.on_same_key == "replace":
        await store.cancel(elsewhere, False)
    elif await store.parked(elsewhere):
        raise _taken(message)


def _taken(message: Message) -> Refused:
    key = message.key.decode("utf-8", "backslashreplace")
    return Refused(
        f"a message with key {key} is parked on route {message.route} already, and on_same_key is "
        f"{message.on_same_key}: cancel that one first"
    )
