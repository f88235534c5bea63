"""A consumer whose failed records return later: retried_confluent.py 127.0.0.1:9092 payments payments.failed"""

import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer


def work(value: bytes, attempt: int) -> None:
    print(f"{value.decode()}: attempt {attempt} at {time.time():.3f}", flush=True)
    if attempt < 2:
        raise ConnectionError("no answer")


def written(error: Any, record: Any) -> None:
    if error:  # flush() raises it: the program ends, and the offset is not committed
        raise KafkaException(error)


servers, topic, failed = sys.argv[1:]
group = {"group.id": f"{topic}-billing", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
consumer = Consumer({"bootstrap.servers": servers, **group})
producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
consumer.subscribe([topic])
while True:
    record: Any = consumer.poll(1)
    if record is None or record.error():
        continue
    headers = record.headers() or []
    try:
        work(record.value(), int(dict(headers).get("x-retry-attempt", 0)))
    except ConnectionError as error:
        headers = [*headers, ("kafka_dlt-exception-message", str(error).encode())]
        # The number of its partition brings it back to the same one, whatever partitioner the producers use.
        number = record.partition()
        producer.produce(failed, record.value(), record.key(), number, headers=headers, on_delivery=written)
        producer.flush()
    consumer.commit(record, asynchronous=False)
