"""Three delayed messages with pika: python later_pika.py amqp://guest:guest@127.0.0.1:5672/%2F"""

import sys
import time

import pika

LATER = {
    "number": {"x-delay": 2_000},
    "text": {"x-delay": "2s"},
    "moment": {"x-deliver-at": time.time_ns() // 1_000_000 + 2_000},
}

with pika.BlockingConnection(pika.URLParameters(sys.argv[1])) as connection:
    channel = connection.channel()
    channel.confirm_delivery()
    for body, headers in LATER.items():
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish("orders.delay", "order.timeout", body.encode(), properties, mandatory=True)
