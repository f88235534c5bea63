"""Draws the screenshots of the README from a running postdate: `make screens`.

Four routes on RabbitMQ and Kafka take a trickle of messages for twenty minutes. The longer, the fuller is the left half
of the timeline.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pika
from confluent_kafka import Producer
from playwright.sync_api import Browser, sync_playwright

from bridge.cli import run_command
from tests.bridge_process import Bridge, store_client, toml
from tests.delay_line import blocking
from tests.devstack import browser as browsers
from tests.devstack import kafka_admin
from tests.http_line import HttpLine

OUT = Path(__file__).parents[2] / "deploy" / "screens"
ROUTES = {"orders": "rabbitmq", "reminders": "rabbitmq", "invoices": "rabbitmq", "payments": "kafka"}
TRICKLE_S = 1200.0
_WAIT_MS = 4000


def settings_of(http: HttpLine) -> dict[str, Any]:
    """The servers come from the environment, as `python -m tests.devstack run` gives them."""
    routes = {
        name: {"broker": broker, "intercept": f"{name}.delay", "deliver_to": name} for name, broker in ROUTES.items()
    }
    return {
        "redis": {"url": os.environ["POSTDATE_REDIS__URL"], "key_prefix": "screens"},
        "rabbitmq": {"url": os.environ["POSTDATE_RABBITMQ__URL"]},
        "kafka": {"bootstrap_servers": os.environ["POSTDATE_KAFKA__BOOTSTRAP_SERVERS"]},
        "canary": {"enabled": True, "every": "5s"},
        "routes": routes,
        **http.settings,
    }


def declare(url: str) -> None:
    """Exchanges with a consumer's queue each."""
    with blocking(url) as connection:
        channel = connection.channel()
        for name in (name for name, broker in ROUTES.items() if broker == "rabbitmq"):
            channel.exchange_declare(name, "topic", durable=True)
            channel.queue_declare(f"{name}.work", arguments={"x-max-length": 10})
            channel.queue_bind(f"{name}.work", name, "#")


def trickle(settings: dict[str, Any], stop: Event) -> None:
    """Publish messages with delays from a second to two hours; a few have a bad header."""
    chance = random.Random(3)
    producer = Producer({"bootstrap.servers": settings["kafka"]["bootstrap_servers"], "log_level": 0})
    with blocking(settings["rabbitmq"]["url"]) as connection:
        channel = connection.channel()
        number = 0
        while not stop.is_set():
            for _ in range(12):
                number += 1
                route = chance.choices(list(ROUTES), (5, 3, 1, 3))[0]
                wait_s = min(7200, int(chance.expovariate(1 / 1500)) + 1) if chance.random() < 0.7 else 1
                delay = "tomorrow" if number % 700 == 9 else f"{wait_s}s"
                headers = {"x-delay": delay, "x-delay-key": f"{route[:-1]}-{40_000 + number}"}
                body = f'{{"{route[:-1]}": {number}, "total": "129.90", "currency": "EUR"}}'.encode()
                publish(channel, producer, route, body, headers)
            connection.process_data_events(0.1)
            producer.poll(0)
    producer.flush(10)


def publish(channel: Any, producer: Producer, route: str, body: bytes, headers: dict[str, str]) -> None:
    if ROUTES[route] == "kafka":
        kept: Any = [(name, value.encode()) for name, value in headers.items()]
        producer.produce(f"{route}.delay", body, headers["x-delay-key"].encode(), headers=kept)
    else:
        properties = pika.BasicProperties(content_type="application/json", headers=headers)
        channel.basic_publish(f"{route}.delay", f"{route[:-1]}.created", body, properties)


def draw(browser: Browser, url: str) -> None:
    """Both colour schemes of the overview."""
    OUT.mkdir(parents=True, exist_ok=True)
    for scheme, name in (("light", "overview.png"), ("dark", "overview-dark.png")):
        context = browser.new_context(
            viewport={"width": 1280, "height": 880}, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector(".timeline canvas")
        page.wait_for_timeout(_WAIT_MS)
        page.screenshot(path=OUT / name)
        context.close()


def main() -> int:
    """Run a bridge, feed it, and draw."""
    http = HttpLine()
    settings = settings_of(http)
    declare(settings["rabbitmq"]["url"])
    if "payments" not in kafka_admin.topics(settings["kafka"]["bootstrap_servers"]):
        kafka_admin.create_topic(settings["kafka"]["bootstrap_servers"], 3, name="payments")
    with tempfile.TemporaryDirectory() as folder, Bridge(Path(folder), settings) as bridge:
        file = Path(folder) / "setup.toml"
        file.write_text(toml(settings))
        assert run_command(["setup", "--config", str(file)]) == 0
        bridge.start()
        http.wait("/readyz", 200, 90)
        stop = Event()
        feeding = Thread(target=trickle, args=(settings, stop), daemon=True)
        feeding.start()
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else TRICKLE_S)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(browsers.find_chromium()))
            draw(browser, f"http://127.0.0.1:{http.port}/")
            browser.close()
        stop.set()
        feeding.join()
        bridge.terminate()
    with store_client(settings["redis"]["url"]) as client:
        for key in client.scan_iter(match="{screens*"):
            client.delete(key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
