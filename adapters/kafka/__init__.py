"""Kafka, by aiokafka."""
