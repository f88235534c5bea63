"""postdate: the delay bridge. This is the map; ``README.md`` beside it has the decisions and the table of moves.

The way of a message, by file of ``pipeline/``::

             intake, decide, park            claim              publish
    source ───────────────────────▶ [PARKED] ─wake─▶ [CLAIMED] ───────▶ settle ──▶ gone
      ▲ accept once it is durable │  ▲  ▲  ▲            │                  │
      └───────────────────────────┘  │  │  └── recover ─┘                  │
                                     │  └── release: refused or unknown ◀──┤
                                     └── retry ◀── [DEAD] ◀── bury ◀───────┘

Without a store, ``pipeline/relay.py`` passes messages to the broker's TTL queues or level topics, and on from there.

Floors, lowest first. A file imports only from its own floor and from floors listed before it:

- ``core/``       messages, legal moves (``state``), ``errors``, ``reasons``, clock, the ``journal``, who runs
                  (``roll``); ``orders``: what operators order for a route; ``ports``: what a store, a source and a sink
                  promise
- ``delay/``      pure: when is a message due (``header``, ``duration``), when does a retry return (``schedule``), which
                  retry headers are genuine (``seal``), where may a message go (``naming``, ``trust``)
- ``parking/``    pure: what the store keeps (``envelope``, ``history``), ``opening`` of what was claimed, ids and
                  shards (``identity``), redelivered messages
- ``settings/``   names, types and defaults (``model``), ``reading``, what must hold between them (``conflicts``), and
                  which processes they need (``process_plan``)
- ``telemetry/``  health and its subjects, lateness, metrics, spans, log lines
- ``desk/``       nouns of the operator's side, which adapters know: the protocol ``Desk``, ``rows``, ``numbers``, the
                  ``past`` (history, audit), ``topology``, leftovers of previous settings, steps of a migration
- ``pipeline/``   the stages above; ``round`` (parks what ``intake`` took, run by run), ``wake`` (when to claim next),
                  ``leases`` (shards and claims this instance holds), ``unopened`` (what cannot be read), ``ordered``
                  (what operators ordered), ``gate`` (paused routes and rates), ``full`` (routes at max_parked),
                  ``fan_out`` (several destinations), ``history`` (what left the store), ``relay``, ``putback``
                  (messages that come back with an id of their own). For the journal: ``journaled`` (the way in),
                  ``move_tail`` (moves), ``journal_watch`` (losses), ``restore``, ``tiers`` (the cold tier)
- ``process/``    the loops of one process, its share of the shards (``members`` agrees and renews leases, ``deal``
                  computes), its workers, the HTTP process beside it (``frames`` is the line to that), reloads
- ``app/``        settings in, a service out: wiring, canaries, what is declared and surveyed at a start; ``brokers`` is
                  the only file that imports ``adapters``
- ``operate/``    what operators do: ``operator`` is the protocol, ``local`` at the stores, ``remote`` over the API;
                  ``documents`` (every shape that people read), ``verbs``, ``find``, ``bulk``, ``send``, ``verdict``,
                  ``check``, ``doctor``, ``export``, ``importing``, ``replay`` (of Kafka's intake), the webhook
- ``lab/``        demo, bench and compare
- ``http/``       the process beside the bridge: API, access, metrics, health; ``page/``: the page, without a build step
- ``cli/``        ``commands`` is the table of the commands; ``acts`` has the verbs, ``operation`` those over a filter.
                  Endpoints and commands read input, call an ``Operator`` and print documents

To add

- a header that delays: ``delay/header.py``; the stages see only what it decided; ``DELAY_HEADERS`` in
  ``adapters/kafka/producers/`` and in ``deploy/kafka-java``. Other headers of producers: x-delay-to in
  ``delay/trust.py``, x-delay-priority in ``adapters/kafka/intake.py``. Headers on the way out, x-delay-..., in
  ``adapters/<broker>/``: id and due in ``outgoing.py``, reason in ``levels/packing.py``, traceparent in
  ``broker_payloads.py``, expiration in ``raw/expiration.py`` (RabbitMQ)
- a setting: ``settings/model.py`` (``Only`` for one broker's routes), its paragraph in ``config.example.toml``, rules
  in ``conflicts``; ``pipeline/derive.py`` gives it to a stage, a broker reads it in ``adapters/<broker>/``;
  ``settings/live.py`` if a reload applies it
- a metric: ``telemetry/metrics.py`` and ``http/metrics.py``, a panel in ``deploy/grafana-dashboard.json``; its alert:
  ``deploy/prometheus-alerts.yaml``, a heading in ``deploy/README.md``, ``tests/integration/alerts.test.yaml``
- an endpoint: a router in ``http/`` with a role
- a process of our own: start it with ``process.workers.python_command``
- a verb: an entry in ``operate/verbs.py``, which makes its endpoint and its counter; a command in ``cli/acts.py``,
  ``commands.py``, its button in ``page/verbs.js``; a new effect: ``desk/protocol.py``, and the three desks, in
  ``adapters/redis``, ``adapters/memory`` and ``operate/journaled_desk.py``
- a field of a message: ``operate/documents.py`` and ``operate/describe.py``; for a column also ``cli/listing.py`` and
  ``page/messages.js``
- a filter of a list: ``desk/rows.py``, ``operate/find.py``, ``MessageFilter`` in ``http/schemas.py``,
  ``cli/filters.py``, ``cli/listing.py`` if the history lacks it, ``page/messages.js``, ``page/verbs.js`` (``OPTIONS``)
- a trouble of an instance: ``Health.say`` with a ``Subject`` where it is noticed, and its row in
  ``deploy/messages.md``; its rank among troubles: ``_rank`` in ``operate/verdict.py``; whether several are one:
  ``operate/faults.py``; whether the webhook reports it: ``_PARTS`` and ``_KINDS`` in ``operate/webhook.py``; whether
  it makes messages late, or fails /readyz: ``telemetry/subject.py`` and ``process/service.py``
- a log line: ``log.warning`` where it happens (``telemetry/notices`` bounds repeats), its row in
  ``deploy/messages.md``
- a move of a message: ``core/state.py`` (README.md has its table), ``core/ports.py``, a script in
  ``adapters/redis/lua/moves/`` and its call in ``store.py`` or ``desk.py`` there, ``move_log.py`` if the journal hears
  of it; ``shard.py`` and its callers in ``adapters/memory``
- a command: a module in ``cli/`` and an entry in ``cli/commands.py``
- a broker: a folder in ``adapters/`` with the five parts of ``Broker`` in ``app/brokers.py``, a line there, its
  section and rules in ``settings/``, and a place beside each ``"kafka"`` of ``bridge/``: words, figures and ranks in
  ``operate/``, ``lab/``, ``cli/plan.py``, ``page/message.js`` and ``page/send.js``

Whether a copy can leave is decided by ``alive`` of the source, ``Round._leave_dead``, the lease in ``Publisher.once``
and the token in ``lua/moves/settle.lua``. ``tests/README.md`` names the tests.

Stale level queues and topics are deleted, or kept with a reason, by ``adapters/<broker>/stale_levels.py``.

Why a dead letter is dead: ``core/reasons.py`` for the kinds, ``settle.verdict``, ``decide``,
``adapters/*/refusals.py``.

``adapters/`` may import ``core`` to ``pipeline``, and the lab's interfaces. ``tests/unit/test_house_rules.py`` checks
the order of the floors and prints it. ``tests/README.md`` says where a test goes.
"""

__version__ = "0.1.0"
