"""Kafka records as the bytes that came."""
