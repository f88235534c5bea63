"""Deal the shards to the instances by load, and leave them where they are while the loads are even enough.

Pure. The deal in force is part of the input. So instances that see the same deal and loads return the same answer, and
a small change of the loads moves no shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from zlib import crc32

#: Loads are averages over about this time.
WINDOW_S = 10.0
#: Shards move when the busiest instance loses at least this part of a fair share. A move costs milliseconds.
_WORTH = 0.15
#: A gain must also exceed this many standard deviations of the measured load, so that chance moves no shard.
_SIGMAS = 2.0
#: An instance with this part more than a fair share that cannot be relieved takes turns with the least busy one.
_UNEVEN = 0.22
#: A shard that changes sides is at most this part of its holder's load. The other side becomes a tenth busier at most.
_TURNED_MAX, _TURNED_SUM_MAX = 0.75, 1.1
#: What all shards weigh without any load, in messages a second, so that idle shards are dealt evenly.
_IDLE_PER_S = 1.0


def deal(held: Sequence[str], loads: Sequence[float], instances: Collection[str], turn: bool = False) -> list[str]:
    """Return the instance that drains each shard from now on.

    ``held`` names the instance that drains each shard now ("" for none). ``loads`` are messages a second. A shard
    without an able instance moves at once. Others move when an instance has no shard, or when the gain is worth it.
    With ``turn``, and where no deal is even, one shard changes sides: the third of three equal ones, for example.
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
    if turn and chosen == hands:
        _take_turns(chosen, weights, fair * (1 + _UNEVEN + noise))
    owner = {shard: name for name, hand in chosen.items() for shard in hand}
    return [owner[shard] for shard in range(len(loads))]


def _turns(shards: int) -> list[int]:
    """Return the shards in the order in which idle ones are dealt: that in which the partitions of a topic use them.

    CRC-32 is linear. So for every topic the shards of partitions 0 to 3 differ in the same bits. Dealt in the order of
    their numbers, they would all belong to one of two instances.
    """
    found = dict.fromkeys(crc32(b"%d" % partition) % shards for partition in range(10))
    return [*found, *(shard for shard in range(shards) if shard not in found)]


def _sum(hand: Collection[int], weights: Sequence[float]) -> float:
    return sum(weights[shard] for shard in hand)


def _busiest(hands: Mapping[str, Collection[int]], weights: Sequence[float]) -> float:
    return max(_sum(hand, weights) for hand in hands.values())


def _evened(before: Mapping[str, Sequence[int]], weights: Sequence[float]) -> dict[str, list[int]]:
    """Move shards, one at a time, from the busiest instance to the least busy one while that helps."""
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


def _take_turns(hands: Mapping[str, list[int]], weights: Sequence[float], most: float) -> None:
    """Move the shard that gives the least busy instance what the busiest has now, where that has more than ``most``."""
    sums = {name: _sum(hand, weights) for name, hand in hands.items()}
    high, low = max(sums, key=sums.__getitem__), min(sums, key=sums.__getitem__)
    if sums[high] <= most:
        return
    shard = min(hands[high], key=lambda shard: abs(sums[low] + weights[shard] - sums[high]))
    # The busiest keeps a load of its own: moving one hot shard back and forth would relieve neither.
    if weights[shard] <= sums[high] * _TURNED_MAX and sums[low] + weights[shard] <= sums[high] * _TURNED_SUM_MAX:
        hands[high].remove(shard)
        hands[low].append(shard)
