"""An ordinary consumer that knows nothing of postdate: python kafka_consumer.py kafka:9094"""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic


async def main(servers: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic("payments", num_partitions=3, replication_factor=1)])
    await admin.close()
    async with AIOKafkaConsumer(
        "payments", bootstrap_servers=servers, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        print("waiting for records", flush=True)
        async for record in consumer:
            late_ms = time.time_ns() // 1_000_000 - int(dict(record.headers)["due-ms"])
            print(f"{record.value.decode()}: arrived, {late_ms} ms late", flush=True)


asyncio.run(main(sys.argv[1]))
