"""A worker and its tasks; postdate delays what has a countdown or an eta, and the retries: see ../../README.md."""

import os
import time
from typing import Any

from celery import Celery, Task


class LaterTask(Task):
    """Publish delayed calls through postdate. All other calls go straight to the queue, as before."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if options.get("countdown") or options.get("eta"):
            wanted = {"queue": options.get("queue") or getattr(self, "queue", None)}
            queue = self.app.amqp.router.route(wanted, self.name, args, kwargs)["queue"]
            options |= {"exchange": "celery.delay", "routing_key": queue.name}
        return super().apply_async(args, kwargs, **options)


app = Celery("tasks", broker=os.environ["BROKER"], task_cls=LaterTask)
app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=2, retry_jitter=False, max_retries=2)
def remind(self: Any, order: str, failures: int = 0) -> None:
    print(f"{order}: try {self.request.retries + 1} at {time.time():.3f}", flush=True)
    if self.request.retries < failures:
        raise ConnectionError


@app.task(bind=True, queue="payments", max_retries=2)
def charge(self: Any, order: str, failures: int = 0) -> None:
    print(f"{order}: try {self.request.retries + 1} at {time.time():.3f}", flush=True)
    if self.request.retries < failures:
        raise self.retry(countdown=2)
