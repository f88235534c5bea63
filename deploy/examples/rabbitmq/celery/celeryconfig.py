"""Celery's settings. postdate needs the router and the confirms; ../../../celery.md explains them."""

import os
from typing import Any

from kombu import Queue

broker_url = os.environ["BROKER"]


def through_postdate(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> dict[str, str]:
    queue = options["queue"].name if "queue" in options else "celery"
    return {"queue": queue, "exchange": "celery.delay", "routing_key": queue}


task_routes = [through_postdate]
broker_transport_options = {"confirm_publish": True}  # without it, Celery loses tasks in silence

# postdate returns what a worker rejects from this queue: the route shipping_retry.
returned = {"x-dead-letter-exchange": "postdate.retry", "x-dead-letter-routing-key": "shipping_retry"}
task_queues = [Queue("celery"), Queue("payments"), Queue("shipping", queue_arguments=returned)]
