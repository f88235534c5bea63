"""A consumer whose failed messages come back later: python retried_aio_pika.py amqp://guest:guest@127.0.0.1:5672/%2F"""

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any

import aio_pika

RETURNED = {"x-dead-letter-exchange": "postdate.retry", "x-dead-letter-routing-key": "work_retry"}


def work(body: bytes, attempt: Any) -> None:
    print(f"{body.decode()}: attempt {attempt} at {time.time():.3f}", flush=True)
    if attempt < 2:
        raise ConnectionError


async def main(url: str) -> None:
    channel = await (await aio_pika.connect_robust(url)).channel()
    queue = await channel.declare_queue("orders.work", durable=True, arguments=RETURNED)
    await queue.bind("orders", "order.work")
    async with queue.iterator() as messages:
        async for message in messages:
            with suppress(ConnectionError):
                async with message.process():  # rejects with requeue=False if the block raises
                    work(message.body, message.headers.get("x-retry-attempt", 0))


asyncio.run(main(sys.argv[1]))
