"""Every key that postdate has in the store, with its type. Braces are the hash tag: a shard's keys share one slot.

=====================  ======  ==========================================================================
key                    type    holds
=====================  ======  ==========================================================================
{postdate:K}:due       zset    id -> Unix ms at which it is due, or at which the next try is
{postdate:K}:msg       hash    id -> envelope (bridge/parking/envelope.py), for parked, claimed and dead alike
{postdate:K}:claimed   zset    id + token of the claim (8 bytes) -> Unix ms at which the lease ends
{postdate:K}:dead      zset    id -> Unix ms at which it became a dead letter
{postdate:K}:why       hash    id -> the last reason it was not delivered for
{postdate:K}:keys      hash    route, NUL, the producer's key -> ids, or '*' and their number
{postdate:K}:drain     string  the instance that drains the shard, with a time limit
{postdate:K}:recent    list    digests and ids of what was parked lately, for redeliveries
{postdate:K}:offsets   hash    log -> the next offset that is new; log, NUL, owed -> those below still to be rejected
{postdate:K}:counts    hash    parked, delivered, dead, cancelled, replaced, recovered: how many, ever
{postdate:K}:park:I    string  the last park token of instance I and its reply, for an hour
{postdate:K}:reject:I  string  the last reject token of instance I, for an hour
{postdate}:instances   zset    instance -> Unix ms until which it counts
{postdate}:health      hash    instance -> 1 or 0 (can it deliver) and how it is, JSON
{postdate}:store       hash    format, shards, id: what every instance must agree on; lost_ms, lost: the last loss seen
{postdate}:deal        string  JSON: the instance that drains each shard, as all agreed
=====================  ======  ==========================================================================

K is the number of the shard. The channel {postdate:K}:wake carries hints that a due moment came nearer.
"""

from __future__ import annotations


class ShardKeys:
    """The keys of one shard."""

    __slots__ = (
        "claimed",
        "counts",
        "dead",
        "drain",
        "due",
        "keys",
        "msg",
        "offsets",
        "park",
        "recent",
        "reject",
        "wake",
        "why",
    )

    def __init__(self, prefix: str, shard: int, instance: str) -> None:
        tag = f"{{{prefix}:{shard}}}"
        self.due = f"{tag}:due"
        self.msg = f"{tag}:msg"
        self.claimed = f"{tag}:claimed"
        self.dead = f"{tag}:dead"
        self.why = f"{tag}:why"
        self.keys = f"{tag}:keys"
        self.drain = f"{tag}:drain"
        self.recent = f"{tag}:recent"
        self.offsets = f"{tag}:offsets"
        self.counts = f"{tag}:counts"
        self.park = f"{tag}:park:{instance}"
        self.reject = f"{tag}:reject:{instance}"
        self.wake = f"{tag}:wake"


class StoreKeys:
    """The keys of the whole store, and of each of its shards."""

    def __init__(self, prefix: str, shards: int, instance: str) -> None:
        self.instances = f"{{{prefix}}}:instances"
        self.health = f"{{{prefix}}}:health"
        self.deal = f"{{{prefix}}}:deal"
        self.store = f"{{{prefix}}}:store"
        self.shards = [ShardKeys(prefix, shard, instance) for shard in range(shards)]
