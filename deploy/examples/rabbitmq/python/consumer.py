"""An unchanged consumer, to see what arrives: python consumer.py amqp://guest:guest@127.0.0.1:5672/%2F"""

import datetime
import sys

import pika

channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
channel.exchange_declare("orders", "topic", durable=True)
channel.queue_declare("order-timeouts", durable=True)
channel.queue_bind("order-timeouts", "orders", "order.timeout")
for method, _properties, body in channel.consume("order-timeouts"):
    print(f"{datetime.datetime.now():%H:%M:%S} {method.routing_key} {body.decode()}", flush=True)
    channel.basic_ack(method.delivery_tag)
