"""A drop-in `confluent_kafka.Producer`: `from postdate.producers.confluent_kafka import DelayProducer as Producer`."""

from ..adapters.kafka.producers.delay_confluent import DELAY_HEADERS, DelayProducer, DelaySerializingProducer

__all__ = ["DELAY_HEADERS", "DelayProducer", "DelaySerializingProducer"]
