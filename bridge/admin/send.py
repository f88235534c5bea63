"""Parks a message for ``postdate send``, without a broker. Keys follow the same rules as on intake."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from bridge.core.errors import Refused, StoreUnavailable
from bridge.core.ports import Batch, Keyed, Store
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids, shard_for, shard_of


@dataclass(frozen=True, slots=True)
class Message:
    """A message to park. A ``due_ms`` (Unix ms) in the past means now. An empty ``key`` means no key.

    ``order`` and ``on_same_key`` are the route's settings. ``order_key`` is the routing key or the Kafka key.
    """

    route: str
    order: str
    on_same_key: str
    order_key: bytes
    payload: bytes
    due_ms: int
    key: bytes


def new_id(store: Store, ids: Ids, message: Message) -> bytes:
    """Return an id for a message, in the shard of its order."""
    return ids.next(store.clock.now_ms(), shard_for(_order(message), store.shards))


async def send(store: Store, ids: Ids, message: Message, message_id: bytes = b"") -> bytes:
    """Park a message with the configured durability. Return its id: ``message_id``, or a new one.

    A message that is parked again with the same id stays one message.

    Raises ``Refused`` if a message with its key is parked and may not be replaced. Raises ``StoreUnavailable`` with the
    id, because the message may have been parked.
    """
    now_ms = store.clock.now_ms()
    route = message.route.encode()
    message_id = message_id or new_id(store, ids, message)
    shard = shard_of(message_id)
    batch = Batch(store.new_token())
    due_ms = max(message.due_ms, now_ms)
    batch.messages.append((message_id, due_ms, seal(due_ms, now_ms, route, message.key, b"", message.payload)))
    if message.key:
        field = index_field(route, message.key)
        await _clear_key(store, field, shard, message)
        # Mode "keep" is refused too: a person who reads "parked" would look for this message.
        mode = "replace" if message.on_same_key == "replace" else "reject"
        batch.keyed.append(Keyed(1, field, mode))
    answer = (await store.park({shard: batch}))[shard]
    if isinstance(answer, StoreUnavailable):
        one = message_id.decode()
        raise StoreUnavailable(f"{answer}. The message may have been parked. See `postdate show {one}`") from answer
    if answer.rejected:
        raise _taken(message)
    return message_id


def _order(message: Message) -> bytes:
    if message.order == "key":
        return message.order_key
    return message.route.encode() if message.order == "route" else secrets.token_bytes(4)


async def _clear_key(store: Store, field: bytes, shard: int, message: Message) -> None:
    """Replace or refuse for messages with this key in other shards. The park script sees only its own shard."""
    elsewhere = [one for one in (await store.find([field]))[field].ids if shard_of(one) != shard]
    if message.on_same_key == "replace":
        await store.cancel(elsewhere, False, replaced=True)
    elif await store.parked(elsewhere):
        raise _taken(message)


def _taken(message: Message) -> Refused:
    key = message.key.decode("utf-8", "backslashreplace")
    return Refused(
        f"a message with key {key} is already parked on route {message.route}, and on_same_key is "
        f'"{message.on_same_key}". Cancel that message first'
    )
