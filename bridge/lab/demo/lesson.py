"""What it takes to have what the demo showed: the lines of settings, and the one line of the producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.settings.model import BrokerKind

_LINES: Mapping[BrokerKind, str] = {
    "rabbitmq": """\
On RabbitMQ:
  [routes.orders]
  intercept = "orders.delay"     # where producers publish
  deliver_to = "orders"          # where consumers stay
and in the producer:
  channel.basic_publish("orders.delay", "new", body,
      pika.BasicProperties(headers={"x-delay": 3000}))
""",
    "kafka": """\
On Kafka:
  [routes.payments]
  broker = "kafka"
  intercept = "payments.delay"   # where producers write
  deliver_to = "payments"        # what consumers read
and in the producer:
  await producer.send("payments.delay", value,
      headers=[("x-delay", b"3000")])
""",
}


def lesson(brokers: Sequence[BrokerKind]) -> str:
    """The words at the end of the demo, for those who saw these brokers."""
    lines = "".join(_LINES[broker] for broker in brokers)
    return f"What did it; the consumers are unchanged.\n{lines}README.md goes on from here."
