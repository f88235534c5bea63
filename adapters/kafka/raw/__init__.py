"""Kafka records as raw bytes: the stored form, and batches that aiokafka cannot decode."""
