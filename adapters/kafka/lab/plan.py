"""The numbers of a bench on Kafka, where they are not the usual ones."""

from dataclasses import replace

from bridge.lab.bench.plan import Plan
from bridge.lab.bench.plan import quick as usual_quick

PLAN = replace(
    Plan(),
    shares=(0.12, 0.07),
    rates=(500, 2000),
    plain=1_000_000,
    bursts=(20_000, 100_000),
    window=20_000,
    keys=1000,
)
QUICK = replace(usual_quick(PLAN), shares=(0.12,), plain=200_000, bursts=(20_000,))
