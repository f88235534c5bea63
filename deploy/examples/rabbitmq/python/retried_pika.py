"""A consumer whose failed messages come back later: python retried_pika.py amqp://guest:guest@127.0.0.1:5672/%2F"""

import sys
import time

import pika

RETURNED = {"x-dead-letter-exchange": "postdate.retry", "x-dead-letter-routing-key": "work_retry"}


def work(body: bytes, attempt: int) -> None:
    print(f"{body.decode()}: attempt {attempt} at {time.time():.3f}", flush=True)
    if attempt < 2:
        raise ConnectionError


channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
channel.queue_declare("orders.work", durable=True, arguments=RETURNED)
channel.queue_bind("orders.work", "orders", "order.work")
for method, properties, body in channel.consume("orders.work"):
    try:
        work(body, (properties.headers or {}).get("x-retry-attempt", 0))
        channel.basic_ack(method.delivery_tag)
    except ConnectionError:
        channel.basic_nack(method.delivery_tag, requeue=False)
