"""Three delayed messages with kombu: python later_kombu.py amqp://guest:guest@127.0.0.1:5672/%2F"""

import sys
import time

from kombu import Connection

LATER = {
    "number": {"x-delay": 2_000},
    "text": {"x-delay": "2s"},
    "moment": {"x-deliver-at": time.time_ns() // 1_000_000 + 2_000},
}

# Without confirm_publish, kombu loses a message in silence if the exchange does not exist.
with Connection(sys.argv[1], transport_options={"confirm_publish": True}) as connection:
    producer = connection.Producer()
    for body, headers in LATER.items():
        producer.publish(body, exchange="orders.delay", routing_key="order.timeout", headers=headers)
