"""The image: what is in it, what it needs, and that it keeps postdate's promises when its container dies."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_line import QUICK, merged
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line, delay
from tests.devstack import images
from tests.devstack.engine import Engine
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.image.boxed_bridge import boxed, boxed_bridge
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MOST_ABOVE_BASE = 150_000_000
#: What one death may copy: what was parked and not acknowledged, and what was published and not settled.
WINDOW = 100
COPIES_EACH = 3 * WINDOW


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    small = {"rabbitmq": {"prefetch": WINDOW, "window": WINDOW}}
    with Line(rabbitmq.url, redis_server.url, tmp_path, merged(QUICK, small)) as line:
        yield line


def as_environment(line: Line) -> list[str]:
    """The settings of a line as options of `run`."""
    given: list[str] = []
    for section, table in line.settings.items():
        for name, value in table.items():
            fields = value.items() if isinstance(value, dict) else [("", value)]
            for field, text in fields:
                words = [word for word in (section, name, field) if word]
                given.append(f"--env=POSTDATE_{'__'.join(words).upper()}={text}")
    return given


def test_the_image_is_small_and_says_what_it_is(engine: Engine, postdate_image: str) -> None:
    image, base = engine.inspect(postdate_image), engine.inspect(images.BASE)
    above = image["Size"] - base["Size"]
    print(f"postdate's layers: {above / 1e6:.0f} MB above a base of {base['Size'] / 1e6:.0f} MB")
    assert 0 < above < MOST_ABOVE_BASE
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert (config["Entrypoint"], config["Cmd"]) == (["postdate"], ["run"])
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert labels["title"] == "postdate"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"]
    assert labels["description"]


def test_the_image_has_no_tests_no_caches_and_no_tool_that_installs(engine: Engine, postdate_image: str) -> None:
    look = (
        "import importlib.util as u, json, pathlib, sys;"
        "site = pathlib.Path(u.find_spec('postdate').origin).parents[1];"
        "sources = [f for f in site.rglob('*.py')];"
        "bare = [str(f) for f in sources if not pathlib.Path(u.cache_from_source(str(f))).exists()];"
        "tools = [n for n in ('pip', 'hatchling', 'pytest', 'tests', 'mypy', 'bridge') if u.find_spec(n)];"
        "homes = [str(f) for f in pathlib.Path('/').glob('*/.cache')];"
        "print(json.dumps([sys.prefix, list(sys.version_info[:2]), len(sources) > 500, bare, tools, homes]))"
    )
    with boxed(engine, postdate_image, ("--entrypoint=python",), ("-P", "-c", look)) as box:
        assert box.start().wait_end() == 0
        said = box.log()
    assert json.loads(said) == ["/opt/postdate", [3, 13], True, [], [], []]


def test_a_user_without_an_entry_or_a_home_may_run_it(engine: Engine, postdate_image: str) -> None:
    with boxed(engine, postdate_image, ("--user=23456:23456", "--env=HOME="), ("--version",)) as box:
        assert box.start().wait_end() == 0
        assert box.log().startswith("postdate ")


def test_without_settings_it_says_what_is_missing_and_ends_with_2(engine: Engine, postdate_image: str) -> None:
    with boxed(engine, postdate_image) as box:
        assert box.start().wait_end() == 2
        assert "No route is set" in box.log()


def test_a_message_goes_through_a_container_without_rights_or_a_writable_path(
    engine: Engine, postdate_image: str, line: Line, tmp_path: Path
) -> None:
    with boxed_bridge(engine, postdate_image, line.settings, tmp_path) as box:
        box.start()
        line.publish(Props([delay(700)]), b"through a container")
        (message,) = line.receive()
        assert message.body == b"through a container"
        status = box.run("python", "-c", "print(open('/proc/1/status').read())")
        found = {name: value.strip() for name, _, value in (row.partition(":") for row in status.splitlines())}
        assert found["Uid"].split() == ["10001"] * 4
        assert {found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert found["NoNewPrivs"] == "1"
        for path in ("/tmp/x", "/etc/postdate/x", "/opt/postdate/x", "/x"):
            attempt = f"\ntry: open({path!r}, 'w')\nexcept OSError as e: print(e.strerror)"
            assert box.run("python", "-c", attempt).strip() in ("Read-only file system", "Permission denied")
        assert box.stop(grace_s=30) == 0


def test_the_environment_alone_configures_it_with_secrets_from_files(
    engine: Engine, postdate_image: str, line: Line, tmp_path: Path
) -> None:
    secret = tmp_path / "rabbitmq_url"
    secret.write_text(f"{line.settings['rabbitmq'].pop('url')}\n")
    tmp_path.chmod(0o755)
    secret.chmod(0o644)
    options = (
        *as_environment(line),
        f"--volume={secret}:/run/secrets/rabbitmq_url:ro",
        "--env=POSTDATE_RABBITMQ__URL_FILE=/run/secrets/rabbitmq_url",
    )
    with boxed(engine, postdate_image, options) as box:
        box.start()
        line.publish(Props([delay(300)]), b"from the environment")
        assert line.receive()[0].body == b"from the environment"
        assert "started" in box.log()
        assert box.run("postdate", "check").count("FAIL") == 0


def test_a_container_that_is_killed_and_started_again_loses_nothing(
    engine: Engine, postdate_image: str, line: Line, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    deaths, seeded = 4, random.Random(27)
    box = boxed_bridge(engine, postdate_image, line.settings, tmp_path)
    with box, Ledger(rabbitmq.url, line.front, line.queue) as ledger:
        box.start()
        ledger.produce(400.0, (0, 2000), count=6000)
        for _ in range(deaths):
            ledger.wait_arrivals(300)
            time.sleep(seeded.uniform(0.0, 0.5))
            assert box.kill() == 137
            box.start()
        ledger.produced()
        verdict = settled(line, ledger, 60)
        verdict.assert_kept(deaths * COPIES_EACH)
        assert verdict.owed == 6000
        assert box.stop(grace_s=30) == 0


def test_stopped_under_load_it_ends_with_0_and_leaves_no_copies(
    engine: Engine, postdate_image: str, line: Line, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    box = boxed_bridge(engine, postdate_image, line.settings, tmp_path)
    with box, Ledger(rabbitmq.url, line.front, line.queue) as ledger:
        box.start()
        ledger.produce(400.0, (0, 1000), count=2000)
        ledger.wait_arrivals(300)
        assert box.stop(grace_s=30) == 0
        box.start()
        ledger.produced()
        settled(line, ledger, 60).assert_kept(copies_max=0)


def test_workers_in_a_container_stop_in_good_order(
    engine: Engine, postdate_image: str, line: Line, tmp_path: Path
) -> None:
    with boxed_bridge(engine, postdate_image, merged(line.settings, {"bridge": {"workers": 2}}), tmp_path) as box:
        box.start()
        line.publish(Props([delay(300)]), b"by a worker")
        assert line.receive()[0].body == b"by a worker"
        assert box.stop(grace_s=30) == 0
        assert "all workers have stopped" in box.log()


def test_a_command_that_waits_for_a_server_ends_at_sigterm(engine: Engine, postdate_image: str, line: Line) -> None:
    """Linux drops a SIGTERM to process 1 unless the process handles it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        port = silent.getsockname()[1]
        line.settings["rabbitmq"]["url"] = f"amqp://guest:guest@127.0.0.1:{port}/"
        with boxed(engine, postdate_image, as_environment(line), ("check",)) as box:
            box.start()
            with silent.accept()[0]:
                began = time.monotonic()
                assert box.stop(grace_s=20) == 143
                assert time.monotonic() - began < 10
