"""One delayed record with confluent-kafka: python later_confluent.py 127.0.0.1:9092 payments.delay 15m"""

import sys

from confluent_kafka import Producer

servers, intake, delay = sys.argv[1:]
failed = []
# librdkafka chooses partitions in its own way: either this line here, or kafka.partitioner = "crc32" in postdate.
producer = Producer({"bootstrap.servers": servers, "acks": "all", "partitioner": "murmur2_random"})
producer.produce(
    intake,
    value=b"confluent-kafka",
    key=b"order-1",
    headers={"x-delay": delay},
    on_delivery=lambda error, message: failed.append(error) if error else None,
)
producer.flush()
sys.exit(f"not written: {failed[0]}" if failed else 0)
