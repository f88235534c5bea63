"""Publish a message a second, each with a delay of its own: python rabbitmq_producer.py amqp://..."""

import itertools
import sys
import time

import pika

DELAYS_MS = (5_000, 2_000, 9_000, 1_000, 3_000)

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.confirm_delivery()
for number, delay_ms in enumerate(itertools.cycle(DELAYS_MS), 1):
    due_ms = time.time_ns() // 1_000_000 + delay_ms
    properties = pika.BasicProperties(headers={"x-delay": delay_ms, "due-ms": due_ms}, delivery_mode=2)
    channel.basic_publish("orders.delay", "order.timeout", f"order {number}".encode(), properties, mandatory=True)
    print(f"order {number}: sent, due in {delay_ms / 1000:g} s", flush=True)
    connection.sleep(1)
