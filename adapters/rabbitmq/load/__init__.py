"""A load generator and a lateness meter for RabbitMQ, each a process of its own.

Both speak raw AMQP 0-9-1 frames, encoded with pika's own codecs: a client library would take more of the machine's
cores than the thing that is measured.
"""
