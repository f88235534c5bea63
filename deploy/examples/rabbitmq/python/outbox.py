"""Publishes the rows of an outbox table: python outbox.py shop.db amqp://guest:guest@127.0.0.1:5672/%2F"""

import sqlite3
import sys
import time

import pika

UNSENT = "SELECT id, routing_key, body, deliver_at FROM outbox WHERE sent_at IS NULL ORDER BY number LIMIT 100"
SENT = "UPDATE outbox SET sent_at = unixepoch() WHERE id = ?"


def publish_unsent(database, channel):
    """Publish each unsent row, and only then mark it. A crash in between publishes it again."""
    rows = database.execute(UNSENT).fetchall()
    for row_id, routing_key, body, deliver_at in rows:
        headers = {"x-deliver-at": deliver_at, "x-delay-key": row_id}
        properties = pika.BasicProperties(headers=headers, message_id=row_id, delivery_mode=2)
        channel.basic_publish("orders.delay", routing_key, body, properties, mandatory=True)
        database.execute(SENT, [row_id])
        database.commit()
    return len(rows)


if __name__ == "__main__":
    shop = sqlite3.connect(sys.argv[1])
    with pika.BlockingConnection(pika.URLParameters(sys.argv[2])) as connection:
        confirmed = connection.channel()
        confirmed.confirm_delivery()  # basic_publish returns when RabbitMQ has the message
        while True:
            if not publish_unsent(shop, confirmed):
                time.sleep(0.2)
                connection.process_data_events()
