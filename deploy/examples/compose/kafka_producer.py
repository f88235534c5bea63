"""Write a record a second, each with a delay of its own: python kafka_producer.py kafka:9094"""

import asyncio
import itertools
import sys
import time

from aiokafka import AIOKafkaProducer

DELAYS_MS = (5_000, 2_000, 9_000, 1_000, 3_000)


async def main(servers: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        for number, delay_ms in enumerate(itertools.cycle(DELAYS_MS), 1):
            due_ms = time.time_ns() // 1_000_000 + delay_ms
            headers = [("x-delay", str(delay_ms).encode()), ("due-ms", str(due_ms).encode())]
            await producer.send_and_wait("payments.delay", f"payment {number}".encode(), headers=headers)
            print(f"payment {number}: sent, due in {delay_ms / 1000:g} s", flush=True)
            await asyncio.sleep(1)


asyncio.run(main(sys.argv[1]))
