"""An ordinary consumer that knows nothing of postdate: python rabbitmq_consumer.py amqp://..."""

import sys
import time

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.exchange_declare("orders", "topic", durable=True)
channel.queue_declare("order-timeouts", durable=True)
channel.queue_bind("order-timeouts", "orders", "order.timeout")
print("waiting for messages", flush=True)
for method, properties, body in channel.consume("order-timeouts"):
    late_ms = time.time_ns() // 1_000_000 - properties.headers["due-ms"]
    print(f"{body.decode()}: arrived, {late_ms} ms late", flush=True)
    channel.basic_ack(method.delivery_tag)
