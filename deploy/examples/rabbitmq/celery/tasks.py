"""A worker and its tasks, with nothing of postdate in it: see ../../../celery.md."""

import time
from typing import Any

from celery import Celery

app = Celery("tasks")
app.config_from_object("celeryconfig")


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


@app.task(bind=True, queue="shipping", acks_late=True, acks_on_failure_or_timeout=False)
def ship(self: Any, order: str, failures: int = 0) -> None:
    attempt = (self.request.headers or {}).get("x-retry-attempt", 0)
    print(f"{order}: try {attempt + 1} at {time.time():.3f}", flush=True)
    if attempt < failures:
        raise ConnectionError  # the worker rejects the message, and postdate returns it
