"""Judges a new message of `postdate send` or the API, and parks it without a broker.

Keys follow the same rules as on intake.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from bridge.app.brokers import broker_of
from bridge.core.errors import Refused, SettingsError, StoreUnavailable
from bridge.core.ports import Batch, Keyed, ParkingStore
from bridge.delay.header import OWN_HEADERS
from bridge.desk.payload import Draft
from bridge.operate.moments import due_ms
from bridge.operate.select import refuse_without_store, unknown_route
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids, shard_for, shard_of
from bridge.settings import Settings

_KEY_MAX = 255


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


def judge(draft: Draft, key: str) -> bytes:
    """Refuse headers and keys that no route takes. Return the key as bytes. Raises ``SettingsError``. Pure."""
    if own := sorted(OWN_HEADERS & draft.headers.keys()):
        instead = {"x-delay-key": draft.word("key"), "x-delay-cancel": "`postdate cancel`"}
        use = instead.get(own[0], f"{draft.word('in')} or {draft.word('at')}")
        raise SettingsError(f"The header {own[0]} is for producers. Use {use}.")
    try:
        raw = key.encode()
    except UnicodeEncodeError:
        raise SettingsError(f"{draft.word('key')} is not UTF-8 text.") from None
    if len(raw) > _KEY_MAX:
        raise SettingsError(f"{draft.word('key')} is too long: {len(raw)} bytes. The maximum is {_KEY_MAX}.")
    return raw


def prepare(settings: Settings, route: str, draft: Draft, key: str, due: tuple[int, bool]) -> Callable[[int], Message]:
    """Judge a new message. Return how to make it at a moment of the store's clock (Unix ms). Pure.

    ``due`` is as ``read_due`` returns it. Errors name the fields as ``draft`` does. Raises ``SettingsError``,
    ``Refused``; what it returns raises ``SettingsError`` beyond ``limits.max_delay``.
    """
    if route not in settings.routes:
        raise SettingsError(unknown_route(settings.routes, route))
    refuse_without_store(settings, route)
    raw_key = judge(draft, key)
    order_key, payload = broker_of(settings.routes[route].broker).payloads.pack(settings, route, draft)
    most = settings.limits.max_body
    if len(payload) > most:
        raise SettingsError(f"The message is too large: {len(payload)} bytes. limits.max_body allows {most} bytes.")
    order, on_same_key = settings.routes[route].order, settings.on_same_key_of(route)

    def make(now_ms: int) -> Message:
        moment_ms = max(due_ms(due, now_ms, settings.limits.max_delay), now_ms)
        return Message(route, order, on_same_key, order_key, payload, moment_ms, raw_key)

    return make


def new_id(store: ParkingStore, ids: Ids, message: Message) -> bytes:
    """Return an id for a message, in the shard of its order."""
    return ids.next(store.clock.now_ms(), shard_for(_order(message), store.shards))


async def send(store: ParkingStore, ids: Ids, message: Message, message_id: bytes = b"") -> bytes:
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
    elsewhere: list[bytes] = []
    if message.key:
        field = index_field(route, message.key)
        elsewhere = await _elsewhere(store, field, shard, message)
        # Mode "keep" is refused too: a person who reads "parked" would look for this message.
        mode = "replace" if message.on_same_key == "replace" else "reject"
        batch.keyed.append(Keyed(1, field, mode))
    try:
        answer = (await store.park({shard: batch}))[shard]
        if isinstance(answer, StoreUnavailable):
            raise answer
        if elsewhere and not answer.rejected:  # not before: what a full store does not park must replace no message
            await store.cancel(elsewhere, False, replaced=True)
    except StoreUnavailable as error:
        text = message_id.decode()
        raise StoreUnavailable(f"{error}. The message may have been parked. See `postdate show {text}`") from error
    if answer.rejected:
        raise _taken(message)
    return message_id


def _order(message: Message) -> bytes:
    if message.order == "key":
        return message.order_key
    return message.route.encode() if message.order == "route" else secrets.token_bytes(4)


async def _elsewhere(store: ParkingStore, field: bytes, shard: int, message: Message) -> list[bytes]:
    """Return what a message replaces in other shards: the park script sees only its own. Raises ``Refused`` where it
    may not."""
    ids = [message_id for message_id in (await store.find([field]))[field].ids if shard_of(message_id) != shard]
    if message.on_same_key != "replace" and await store.parked(ids):
        raise _taken(message)
    return ids if message.on_same_key == "replace" else []


def _taken(message: Message) -> Refused:
    key = message.key.decode("utf-8", "backslashreplace")
    return Refused(
        f"a message with key {key} is already parked on route {message.route}, and on_same_key is "
        f'"{message.on_same_key}". Cancel that message first'
    )
