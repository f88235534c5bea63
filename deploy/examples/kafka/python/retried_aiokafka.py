"""A consumer whose failed records return later: python retried_aiokafka.py 127.0.0.1:9092 payments payments.failed"""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


def work(value: bytes, attempt: int) -> None:
    print(f"{value.decode()}: attempt {attempt} at {time.time():.3f}", flush=True)
    if attempt < 2:
        raise ConnectionError("no answer")


async def main(servers: str, topic: str, failed: str) -> None:
    group = {"group_id": f"{topic}-billing", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with (
        AIOKafkaConsumer(topic, bootstrap_servers=servers, **group) as consumer,
        AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer,
    ):
        async for record in consumer:
            try:
                work(record.value, int(dict(record.headers).get("x-retry-attempt", 0)))
            except ConnectionError as error:
                headers = [*record.headers, ("kafka_dlt-exception-message", str(error).encode())]
                await producer.send_and_wait(failed, record.value, record.key, record.partition, headers=headers)
            await consumer.commit()


asyncio.run(main(*sys.argv[1:]))
