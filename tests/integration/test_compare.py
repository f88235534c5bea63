"""`postdate compare` from outside: what it measures, what it writes, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.lab.compare_modes import BY_NAME
from tests.devstack.proxy import ThreadedProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports, wait_for
from tests.integration.test_demo import environment, left_behind
from tests.preloaded import run_postdate

COMMAND = (sys.executable, "-m", "bridge.cli", "compare")
#: A Redis that does not answer.
AWAY = "redis://127.0.0.1:1/0"
TINY = ("--modes", "plain", "--rates", "50", "--duration", "1s", "--count", "50")
LATENESS = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
PICTURES = {f"{name}{ground}.png" for name in ("lateness", "delays", "throughput", "burst") for ground in ("", "-dark")}


def compare(
    redis_url: str, rabbitmq_url: str, folder: Path, *options: str, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    return run_postdate(["compare", *options], folder, environment(redis_url, rabbitmq_url), timeout)


def start(redis_url: str, rabbitmq_url: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    """A comparison that is not waited for, with its report in ``report``."""
    command, environ = (*COMMAND, *options, "--out", "report"), environment(redis_url, rabbitmq_url)
    return subprocess.Popen(command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def report_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report" / "compare.json").read_text())
    return found


def steps_of(found: dict[str, Any], mode: str) -> dict[str, dict[str, Any]]:
    """The figures of a mode by the kind of its step."""
    steps = next(measured["steps"] for measured in found["modes"] if measured["name"] == mode)
    return {step["kind"]: step["figures"] for step in steps}


def needs_no_network(page: str) -> bool:
    page = re.sub(r"base64,[\w+/=]+", "", page)
    return not re.search(r"""(?i)https?:|//\w|url\(|@import|<script|<link|src=["'](?!data:)""", page)


def check_faultless(steps: dict[str, dict[str, Any]], kinds: Sequence[str]) -> None:
    assert list(steps) == list(kinds)
    for figures in steps.values():
        assert figures["messages"] > 0
        assert figures["lost"] == figures["early"] == figures["duplicates"] == figures["refused"] == 0


@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_small_comparison_has_no_faults_and_leaves_only_its_report(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    options = ("--modes", "redis", "--rates", "200", "--duration", "1s", "--count", "300", "--out", "report")
    done = compare(redis_url, rabbitmq_vhost, tmp_path, "--quick", *options, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "Ways: 1, " in done.stderr
    found = json.loads(done.stdout)
    assert found == report_in(tmp_path)
    assert found["ok"] is True
    assert found["plan"]["seed"] == 7

    redis = steps_of(found, "redis")
    check_faultless(redis, ("rate", "flood", "burst"))
    assert redis["rate"]["messages"] == 200
    assert all(redis["rate"][name] is not None for name in LATENESS)
    assert redis["flood"]["out_of_order"] == 0

    files = {file.name for file in (tmp_path / "report").iterdir()}
    wanted = {"compare.json", "table.md", "report.html", *PICTURES}
    if redis["burst"]["all_out_ms"] is None:  # a busy machine published it too late, and then it is not drawn
        wanted -= {"burst.png", "burst-dark.png"}
    assert files == wanted
    assert needs_no_network((tmp_path / "report" / "report.html").read_text())
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost, "compare") == []


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.rabbitmq
def test_levels_are_measured_with_and_without_a_bridge_when_redis_is_away(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    options = ("--modes", "levels,alone", "--rates", "200", "--duration", "1s", "--count", "200", "--out", "report")
    done = compare(AWAY, rabbitmq_vhost, tmp_path, "--quick", *options)
    assert done.returncode == 0, done.stderr
    found = report_in(tmp_path)
    for mode in ("levels", "alone"):
        steps = steps_of(found, mode)
        check_faultless(steps, ("rate", "flood", "burst"))
        # Delays of 1.2 to 3.4 s wait for the level of 5 s; lateness counts from there.
        assert 3700 < steps["rate"]["rounding_max_ms"] <= 3800
        assert 0 <= steps["rate"]["p50_ms"] < 500
    assert "levels, alone" in (tmp_path / "report" / "table.md").read_text()
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost, "compare") == []


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_quick_run_measures_every_available_mode_and_explains_the_others(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    done = compare(redis_url, rabbitmq_vhost, tmp_path, "--quick", "--out", "report")
    assert done.returncode == 0, done.stderr
    found = report_in(tmp_path)
    modes = {mode["name"] for mode in found["modes"]}
    assert modes >= {"plain", "redis", "levels", "alone", "ladder", "ttl"}
    assert modes | found["left_out"].keys() == set(BY_NAME)
    for name, reason in found["left_out"].items():
        assert f"Left out: {name}, because {reason}." in done.stderr
    for mode in modes:
        for figures in steps_of(found, mode).values():
            assert figures["lost"] == figures["early"] == figures["duplicates"] == 0
    # The delays are from 1.2 to 3.4 s; the shortest of them wait behind some that are over a second longer.
    redis, ttl = steps_of(found, "redis")["rate"], steps_of(found, "ttl")["rate"]
    assert redis["messages"] == ttl["messages"]
    assert ttl["short_behind_long_ms"] > 300
    assert redis["short_behind_long_ms"] < ttl["short_behind_long_ms"] / 2
    assert "one TTL queue" in done.stdout
    assert needs_no_network((tmp_path / "report" / "report.html").read_text())
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost, "compare") == []


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_full_comparison_has_a_backlog_and_restarts_the_bridge_without_loss(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    options = ("--modes", "redis,ttl", "--rates", "100", "--duration", "1s", "--count", "400", "--out", "report")
    done = compare(redis_url, rabbitmq_vhost, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert "2,000 that wait" in done.stderr
    found = report_in(tmp_path)
    redis, ttl = steps_of(found, "redis"), steps_of(found, "ttl")
    assert redis["backlog"]["messages"] == ttl["backlog"]["messages"] == 2000
    assert redis["backlog"]["store_grew_bytes"] > 2000 * 256
    assert "restart" not in ttl
    restart = redis["restart"]
    # Of the order nothing is claimed: what RabbitMQ has on its way to a bridge that stops it may give out in another.
    assert restart["lost"] == restart["early"] == restart["duplicates"] == 0
    # A new interpreter needs longer than the messages' own distance of two milliseconds, by far.
    assert restart["standstill_ms"] > 100
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost, "compare") == []


@pytest.mark.redis
@pytest.mark.rabbitmq
def test_an_interrupted_comparison_writes_its_figures_and_deletes_its_objects(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    options = ("--quick", "--modes", "ttl,plain", "--rates", "50", "--duration", "1s", "--count", "50")
    with start(redis_url, rabbitmq_vhost, tmp_path, *options) as running:
        assert running.stderr is not None
        assert any("ttl, rate" in line for line in running.stderr)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Modes without all figures: ttl." in said
    found = report_in(tmp_path)
    assert found["ok"] is False
    assert [mode["name"] for mode in found["modes"]] == ["plain"]
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost, "compare") == []


@pytest.mark.rabbitmq
def test_an_interrupt_while_drawing_says_what_is_missing_and_ends_with_130(rabbitmq_vhost: str, tmp_path: Path) -> None:
    with start(AWAY, rabbitmq_vhost, tmp_path, "--quick", *TINY) as running:
        assert running.stderr is not None
        assert any("Drawing the pictures" in line for line in running.stderr)
        running.send_signal(signal.SIGINT)
        written = next(line for line in running.stderr if line.startswith("Written to"))
        while running.poll() is None:  # a user who holds the keys down
            running.send_signal(signal.SIGINT)
            time.sleep(0.005)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert written == "Written to report: compare.json and table.md. No report: drawing was interrupted.\n"
    assert "Traceback" not in said
    assert {file.name for file in (tmp_path / "report").iterdir()} == {"compare.json", "table.md"}


@pytest.mark.rabbitmq
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_a_full_disk_still_prints_the_table_and_the_error_names_the_file(rabbitmq_vhost: str, tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "compare.json").symlink_to("/dev/full")
    done = compare(AWAY, rabbitmq_vhost, tmp_path, "--quick", *TINY, "--out", "report")
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("report/compare.json cannot be written (No space left on device)")
    assert "50 at once, a second" in done.stdout
    head, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert head == ["group", "figure", "mode", "value"]
    assert rows
    assert all(len(row) == 4 and all(row) and row == [cell.strip() for cell in row] for row in rows)


@pytest.mark.rabbitmq
def test_a_missing_plugin_ends_with_5_if_no_other_mode_is_wanted(rabbitmq_vhost: str, tmp_path: Path) -> None:
    done = compare(AWAY, rabbitmq_vhost, tmp_path, "--modes", "plugin")
    assert done.returncode == 5, done.stderr
    assert "does not have the plugin" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rabbitmq
@pytest.mark.parametrize(("mode", "back"), [("plain", False), ("levels", False), ("ttl", True)])
def test_a_broker_that_goes_away_is_the_last_line_with_the_step_and_what_may_remain(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path, mode: str, back: bool
) -> None:
    with ThreadedProxy.before(rabbitmq_vhost) as proxy:
        options = ("--quick", "--modes", mode, "--rates", "50", "--duration", "3s")
        with start(AWAY, proxy.through(rabbitmq_vhost), tmp_path, *options) as running:
            assert running.stderr is not None
            assert any(f"{mode}, rate" in line for line in running.stderr)
            # The stage's own connection, the generator's and the meter's.
            wait_for(lambda: proxy.connections >= 3, "the load has begun")
            opened = proxy.forwarded_bytes("up") + 4096  # more than a handshake
            wait_for(lambda: proxy.forwarded_bytes("up") > opened, "messages flow")
            (proxy.drop if back else proxy.cut)()
            _, said = running.communicate(timeout=60)
    assert running.returncode == 4, said
    last = said.splitlines()[-1]
    assert last.startswith(f"At the step '{mode}, rate 50': RabbitMQ ")
    assert (f"Objects named postdate.compare.{mode}." in last) is not back
    assert ("rabbitmqctl delete_queue" in last) is not back
    if back:
        assert left_behind(redis_url, rabbitmq, rabbitmq_vhost, "compare") == []


@pytest.mark.rabbitmq
@pytest.mark.parametrize("rights", [("^$", ".*", ".*"), (".*", "^$", ".*"), (".*", ".*", "^$")])
def test_missing_rights_end_with_5_without_a_claim_of_remaining_objects(
    rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path, rights: tuple[str, str, str]
) -> None:
    if not rabbitmq.owned:
        pytest.skip("users are made only on a broker of our own")
    vhost = rabbitmq_vhost.rpartition("/")[2]
    with rabbitmq.user(f"u{secrets.token_hex(4)}", "secret", vhost, rights) as url:
        done = compare(AWAY, url.replace("@", ":secret@"), tmp_path, "--quick", "--modes", "ttl")
    assert done.returncode == 5, done.stderr
    assert done.stderr.splitlines()[-1].startswith("RabbitMQ does not allow it (access to ")
    assert "Objects named" not in done.stderr
    assert [name for name in rabbitmq.names(vhost) if not name.startswith("amq.")] == []


@pytest.mark.slow
def test_without_a_broker_it_ends_with_4_and_says_what_to_type(tmp_path: Path) -> None:
    nobody = free_ports(1)[0]
    for modes in ("ttl", "plugin", "redis"):
        address = f"127.0.0.1:{nobody}"
        done = compare(f"redis://{address}/0", f"amqp://{address}/", tmp_path, "--quick", "--modes", modes)
        assert done.returncode == 4, done.stderr
        assert "POSTDATE_RABBITMQ__URL" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_wrong_options_are_refused_with_2_before_anything_starts(tmp_path: Path) -> None:
    for option, value in (("--modes", "all"), ("--rates", "fast"), ("--duration", "60"), ("--count", "0")):
        done = compare(AWAY, "amqp://127.0.0.1:1/", tmp_path, option, value)
        assert done.returncode == 2, done.stderr
        assert option in done.stderr
