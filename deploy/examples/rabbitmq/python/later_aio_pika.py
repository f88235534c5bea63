"""Three delayed messages with aio-pika: python later_aio_pika.py amqp://guest:guest@127.0.0.1:5672/%2F"""

import asyncio
import sys
import time

import aio_pika

LATER = {
    "number": {"x-delay": 2_000},
    "text": {"x-delay": "2s"},
    "moment": {"x-deliver-at": time.time_ns() // 1_000_000 + 2_000},
}


async def main(url: str) -> None:
    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel()  # with publisher confirms
        exchange = await channel.get_exchange("orders.delay")  # not declare_exchange: postdate declares it
        for body, headers in LATER.items():
            message = aio_pika.Message(body.encode(), headers=headers, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await exchange.publish(message, "order.timeout")


asyncio.run(main(sys.argv[1]))
