"""Celery that sends only delayed tasks and retries through postdate; all others go straight to their queue."""

from typing import Any

from celery import Celery


class Later(Celery):
    def send_task(
        self, name: str, args: Any = None, kwargs: Any = None, countdown: Any = None, eta: Any = None, **options: Any
    ) -> Any:
        if countdown or eta:
            wanted = {"queue": options.get("queue") or getattr(self.tasks.get(name), "queue", None)}
            queue = self.amqp.router.route(wanted, name, args, kwargs)["queue"]
            options |= {"queue": queue, "exchange": "celery.delay", "routing_key": queue.name}
        return super().send_task(name, args, kwargs, countdown, eta, **options)
