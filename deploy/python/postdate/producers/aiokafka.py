"""A drop-in `AIOKafkaProducer`: `from postdate.producers.aiokafka import DelayProducer as AIOKafkaProducer`."""

from ..adapters.kafka.producers.delay_aiokafka import DELAY_HEADERS, DelayProducer

__all__ = ["DELAY_HEADERS", "DelayProducer"]
