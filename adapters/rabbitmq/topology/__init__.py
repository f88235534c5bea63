"""Exchanges, queues and bindings: planned, compared with the broker's, declared."""
