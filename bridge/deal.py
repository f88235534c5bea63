"""Deals the shards to the instances by load, and leaves them where they are while that is good enough.

Pure. The deal that is in force is part of the input, so every instance that looks at the same deal and the same loads
comes to the same answer, and a small change of the loads moves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from zlib import crc32

#: Loads are averages over about so many seconds.
WINDOW_S = 10.0
#: Shards move when that takes this part of a fair share from the busiest instance. A move costs milliseconds.
_WORTH = 0.15
#: How many standard deviations of the measured load a gain must exceed, so that chance moves nothing.
_SIGMAS = 2.0
#: Idle shards weigh something, together so many messages a second, so that they are dealt evenly.
_IDLE_PER_S = 1.0


def deal(held: Sequence[str], loads: Sequence[float], instances: Collection[str]) -> list[str]:
    """The instance that is to drain each shard.

    ``held`` says who drains each shard now ("" where nobody does), ``loads`` how many messages a second leave it. Only
    shards without an able instance move at once; others move when an instance has none, or when it is worth it.
    """
    weights = [load + _IDLE_PER_S / len(loads) for load in loads]
    hands: dict[str, list[int]] = {name: [] for name in sorted(instances)}
    for shard, name in enumerate(held):
        if name in hands:
            hands[name].append(shard)
    orphans = [shard for shard in _turns(len(loads)) if held[shard] not in hands]
    joined = len(hands) <= len(loads) and not all(hands.values())
    for shard in sorted(orphans, key=lambda shard: -weights[shard]):  # a stable sort: equal ones keep their turn
        min(hands.values(), key=lambda hand: _sum(hand, weights)).append(shard)
    evened = _evened(hands, weights)
    fair = sum(weights) / len(hands)
    noise = sqrt(sum(loads) / len(hands) / WINDOW_S) / fair
    gain = (_busiest(hands, weights) - _busiest(evened, weights)) / fair
    chosen = evened if joined or gain >= _WORTH + _SIGMAS * noise else hands
    owner = {shard: name for name, hand in chosen.items() for shard in hand}
    return [owner[shard] for shard in range(len(loads))]


def _turns(shards: int) -> list[int]:
    """The shards in the order in which idle ones are dealt: that in which the partitions of a topic use them.

    CRC-32 is linear, so the shards of partitions 0 to 3 differ from each other in the same bits for every topic. Dealt
    in the order of their numbers, all of them would belong to one of two instances.
    """
    found = dict.fromkeys(crc32(b"%d" % partition) % shards for partition in range(10))
    return [*found, *(shard for shard in range(shards) if shard not in found)]


def _sum(hand: Collection[int], weights: Sequence[float]) -> float:
    return sum(weights[shard] for shard in hand)


def _busiest(hands: Mapping[str, Collection[int]], weights: Sequence[float]) -> float:
    return max(_sum(hand, weights) for hand in hands.values())


def _evened(before: Mapping[str, Sequence[int]], weights: Sequence[float]) -> dict[str, list[int]]:
    """The hands after moving shards, one at a time, from a busy instance to the least busy one while that helps."""
    hands = {name: list(hand) for name, hand in before.items()}
    sums = {name: _sum(hand, weights) for name, hand in hands.items()}
    least = sum(weights) / len(hands) / 100
    while True:
        low = min(sums, key=sums.__getitem__)
        givers = [name for name, hand in hands.items() if len(hand) > 1]
        if not givers:
            return hands
        high = max(givers, key=sums.__getitem__)
        gap = sums[high] - sums[low]
        shard = max(hands[high], key=lambda shard: min(weights[shard], gap - weights[shard]))
        gain = min(weights[shard], gap - weights[shard])
        if gain <= 0 or (gain < least and hands[low]):
            return hands
        hands[high].remove(shard)
        hands[low].append(shard)
        sums[high] -= weights[shard]
        sums[low] += weights[shard]
