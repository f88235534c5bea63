"""postdate: the delay bridge. This package is the house; it names no broker (``adapters`` does).

::

               header    park                 claim                 publish
    source ─────────▶ ──────▶ [PARKED] ─wake──────▶ [CLAIMED] ─────────────▶ settle ──▶ gone
      ▲ accept after    │      ▲  ▲  ▲                  │                       │
      └─ it is durable ─┘      │  │  └── recover ───────┘                       │
                               │  └───── release: refused or unknown, later ◀───┤
                               └──────── retry  ◀── [DEAD]  ◀── bury ◀──────────┘
                       cancel, reschedule act on PARKED

The law              state.py (every legal move), errors.py, message.py, envelope.py, identity.py, ports.py
The way in           arrivals.py (what a source holds), header.py (when is it due), neighbours.py (or nearly so),
                     trust.py (may its producer ask for that), redelivery.py (is it a copy), decide.py,
                     park.py (the loop), runs.py (what goes together), round.py (the calls)
The way out          wake.py (when to look), dispatch.py (claim), depart.py (wait for the moment, publish), alarm.py,
                     settle.py (gone, later or dead), retry.py, refused.py (which routes are)
Where to             naming.py (from one topic to another), destination.py (may a header say so)
Without a store      levels.py (which level, or a dead letter), ladder.py, relay.py (send on, then accept), ways.py,
                     mend.py, held_back.py (a source that waits), unread.py (an intake with nobody at it)
Several brokers      settings.houses (a process and a store each), desks.py (one desk for all)
A changed mode       leaving.py (levels of before), emptying.py and no_intake.py (a store of before)
A changed name       strays.py (what is parked under the old one)
Several instances    shard.py (which shard), members.py (who is there), deal.py and sharing.py (who drains which shard),
                     elsewhere.py (a message whose route only another instance has)
Watching             watch.py, store_watch.py, health.py, lateness.py, clock.py, report.py and notify.py (systemd);
                     plural.py, printable.py (what sentences are made of)
Running              settings/, rules.py (what each part is told of them), app.py (wires both sides),
                     service.py (starts and stops), loops.py, workers.py, cli/
Trying, measuring    demo/, bench/, compare/, trial/ (a bridge of their own, for one run)

``README.md`` beside this file holds the decisions and why they were taken.
"""

__version__ = "0.1.0"
