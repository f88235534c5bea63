"""Kafka, through aiokafka."""
