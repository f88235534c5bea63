"""One delayed record with aiokafka: python later_aiokafka.py 127.0.0.1:9092 payments.delay 15m"""

import asyncio
import sys

from aiokafka import AIOKafkaProducer


async def main(servers: str, intake: str, delay: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        await producer.send_and_wait(intake, b"aiokafka", key=b"order-1", headers=[("x-delay", delay.encode())])


asyncio.run(main(*sys.argv[1:]))
