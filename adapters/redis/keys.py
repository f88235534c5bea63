"""The keys of the store, with their types. Braces are the hash tag: the keys of a shard share one slot.

=====================  ======  ==========================================================================
key                    type    holds
=====================  ======  ==========================================================================
{postdate:K}:due       zset    id -> Unix ms of the due moment, or of the next try; HELD_MS more while held
{postdate:K}:msg       hash    id -> envelope (bridge/parking/envelope.py), whether parked, claimed or dead
{postdate:K}:claims    hash    claim token -> Unix ms at which its lease ends, ids (lua/include/claims.lua)
{postdate:K}:claimed   zset    only of format 1: id + claim token -> Unix ms at which the lease ends
{postdate:K}:dead      zset    id -> Unix ms at which it became a dead letter
{postdate:K}:why       hash    id -> the last reason why it was not delivered
{postdate:K}:refused   zset    route, NUL, due ms, id of each refused message, with score 0 (lua/include/refused.lua)
{postdate:K}:keys      hash    route, NUL, the producer's key -> ids, or '*' and the number of ids
{postdate:K}:drain     string  the instance that drains the shard, with a time limit
{postdate:K}:recent    list    digests and ids of recently parked messages, to recognise redeliveries
{postdate:K}:offsets   hash    log -> the next new offset; log, NUL, owed -> earlier offsets still to be rejected; log,
                               NUL, first -> the lowest offset that was parked since the store was new or emptied
{postdate:K}:counts    hash    totals: parked, delivered, dead, rejected, restored, cancelled, replaced, recovered;
                               NUL, parked | held | dead | cold, NUL, route -> the number of such messages now; NUL,
                               held_ms, NUL, route -> twice a moment before which none of the held was due; and with
                               the byte 1 in front: each caller's last call to park (lua/include/calls.lua),
                               and the number of messages that the recent list ever had
{postdate:K}:lines     zset    route, NUL, digest of a key -> the latest due ms of a retry route with hold
{postdate:K}:history   stream  what became of messages: entries of bridge/parking/history.py, in pieces
{postdate:K}:moved     stream  moves for the journal: name, ids, new due ms or reason; only while there is a journal
{postdate:K}:parks     stream  ids that were parked or rejected; only while a journal is written behind
{postdate:K}:cold      string  random bytes that change whenever a message goes to the journal alone, or comes back
{postdate:K}:reject:I  string  the last reject token of instance I, for an hour
{postdate}:instances   zset    instance -> Unix ms until which it counts as running
{postdate}:health      hash    instance -> 1 or 0 (can it deliver), then its report as JSON
{postdate}:store       hash    format, shards, id, secret (all instances must agree);
                               lost_ms, lost, lost_from_ms, lost_older, restored, restored_ms, restoring_ms (last loss);
                               webhook_*;
                               instances_lost: how many stopped to report without leaving;
                               stepped_ms, _by_ms, _from_ms, _to_ms, _parked (last step of the clock)
{postdate}:lost        hash    instance -> Unix ms at which it was removed, space, its size; until it is over
{postdate}:sizes       hash    instance -> how many instances were listed at its last report, with itself
{postdate}:deal        string  JSON: the agreed instance for each shard
{postdate}:orders      hash    route -> JSON: its state, since when, by whom, why, and when its last pause ended
{postdate}:rates       hash    route -> Unix µs at which its bucket of tokens would have been empty (max_rate)
{postdate}:operations  hash    id -> JSON about a bulk operation; id, /stop -> who asked to stop it
{postdate}:slots:T     hash    slot of 30 s, route, class of lateness -> deliveries, for 10 minutes from T (Unix s)
{postdate}:hours:T     hash    hour, route, class of lateness -> deliveries, for a day from T
{postdate}:audit       stream  JSON: what people did to messages and routes
{postdate}:once:K      string  of the request with Idempotency-Key K: digest, id, and once it is parked due (Unix ms)
{postdate}:lead:W      string  the instance that does W for all, such as reports to the webhook; with a time limit
=====================  ======  ==========================================================================

K is the shard's number. The channel {postdate:K}:wake carries a hint when the next due moment moves closer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.redis.scripts import Call, scripts

#: Slots of 30 s are kept in one hash for each 10 minutes, slots of an hour in one for each day.
SLOTS_MS, HOURS_MS = 600_000, 24 * 3_600_000


class Keys:
    """Keys that scripts name. An attribute is called like the key in the scripts, in lower case."""

    def __init__(self) -> None:
        self._of_script: dict[str, tuple[str, ...]] = {}

    def call(self, name: str, args: Sequence[Any], first: int | None = None, **others: str) -> Call:
        """Return a call of a script with its keys, or the ``first`` ones, where it needs no more.

        ``others`` are keys of the script that are no attributes.
        """
        script = scripts()[name]
        if others:
            return Call(script, tuple(others.get(key) or getattr(self, key) for key in script.keys), args)
        keys = self._of_script.get(name)
        if keys is None:
            keys = self._of_script[name] = tuple(getattr(self, key) for key in script.keys)
        return Call(script, keys[:first], args)


class ShardKeys(Keys):
    """The keys of one shard."""

    def __init__(self, prefix: str, shard: int, instance: str) -> None:
        super().__init__()
        tag = f"{{{prefix}:{shard}}}"
        self.due = f"{tag}:due"
        self.messages = f"{tag}:msg"
        self.claims = f"{tag}:claims"
        self.claimed = f"{tag}:claimed"
        self.dead = f"{tag}:dead"
        self.why = f"{tag}:why"
        self.refused = f"{tag}:refused"
        self.index = f"{tag}:keys"
        self.drain = f"{tag}:drain"
        self.recent = f"{tag}:recent"
        self.offsets = f"{tag}:offsets"
        self.counts = f"{tag}:counts"
        self.history = f"{tag}:history"
        self.lines = f"{tag}:lines"
        self.moved = f"{tag}:moved"
        self.parks = f"{tag}:parks"
        self.cold = f"{tag}:cold"
        self.reject = f"{tag}:reject:{instance}"
        self.wake = f"{tag}:wake"


class StoreKeys(Keys):
    """The keys of the whole store, and of each of its shards."""

    def __init__(self, prefix: str, shards: int, instance: str) -> None:
        super().__init__()
        self.instances = f"{{{prefix}}}:instances"
        self.health = f"{{{prefix}}}:health"
        self.deal = f"{{{prefix}}}:deal"
        self.lost = f"{{{prefix}}}:lost"
        self.sizes = f"{{{prefix}}}:sizes"
        self.orders = f"{{{prefix}}}:orders"
        self.rates = f"{{{prefix}}}:rates"
        self.store = f"{{{prefix}}}:store"
        self.operations = f"{{{prefix}}}:operations"
        self.audit = f"{{{prefix}}}:audit"
        self._tag = f"{{{prefix}}}"
        self.lead = f"{{{prefix}}}:lead"
        self.shards = [ShardKeys(prefix, shard, instance) for shard in range(shards)]

    def slots(self, at_ms: int) -> str:
        """Return the key of the slots of 30 s around a moment."""
        return f"{self._tag}:slots:{at_ms // SLOTS_MS * SLOTS_MS // 1000}"

    def hours(self, at_ms: int) -> str:
        """Return the key of the slots of an hour around a moment."""
        return f"{self._tag}:hours:{at_ms // HOURS_MS * HOURS_MS // 1000}"

    def once(self, key: bytes) -> bytes:
        """Return the key under which a request is remembered."""
        return f"{self._tag}:once:".encode() + key
