"""Drop-in producers for Kafka that send records with a delay header to postdate: `aiokafka`, `confluent_kafka`.

A module for each client library, so that a program needs only its own.
"""
