"""Workers: started, started anew, stopped in good order, and never left behind. Their work is a few lines of Python."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.process import notify
from bridge.process import workers as workers_module
from bridge.process.loops import Running
from bridge.process.workers import PARENT_DIED, Handed, Workers

pytestmark = pytest.mark.slow

# Says that it is there, with its pid and what it was handed, and then waits for SIGTERM.
PATIENT = """
import os, pathlib, signal, sys
def end(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
handed = sys.stdin.buffer.read1()
file = pathlib.Path(sys.argv[1], f"{os.getpid()}.new")
file.write_bytes(handed)
file.rename(file.with_suffix(".there"))
while True:
    signal.pause()
"""
STUBBORN = PATIENT.replace("signal.signal(signal.SIGTERM, end)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
DYING = "import sys; sys.stdin.buffer.read1(); sys.exit(3)"
PARENT = """
import asyncio, os, sys
from bridge.process.workers import Workers
code = "import os; from bridge.process.workers import end_with_parent; end_with_parent(os.getppid())" + sys.argv[2]
asyncio.run(Workers((sys.executable, "-c", code, sys.argv[1]), [b"settings"] * 2, 5).run())
"""


def there(folder: Path) -> set[int]:
    """The pids of the workers that have said that they are there."""
    return {int(file.stem) for file in folder.glob("*.there")}


def handed(folder: Path) -> set[bytes]:
    """What they were handed."""
    return {file.read_bytes() for file in folder.glob("*.there")}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within 20 s: {what}")


@asynccontextmanager
async def running(code: str, folder: Path, count: int = 2, patience_s: float = 20.0) -> AsyncIterator[Workers]:
    """Workers at work; at the end they have stopped."""
    workers = Workers((sys.executable, "-c", code, str(folder)), [b"settings"] * count, patience_s)
    task = asyncio.ensure_future(workers.run())
    try:
        yield workers
    finally:
        workers.stop()
        await asyncio.wait_for(task, 30)


async def test_each_worker_is_handed_its_settings_and_all_end_in_good_order(tmp_path: Path) -> None:
    async with running(PATIENT, tmp_path):
        await until(lambda: len(there(tmp_path)) == 2, "both are there")
        assert handed(tmp_path) == {b"settings"}
        assert all(map(lives, there(tmp_path)))
    assert not any(map(lives, there(tmp_path)))


async def test_a_worker_that_was_killed_is_started_anew_and_the_other_is_left_alone(tmp_path: Path) -> None:
    async with running(PATIENT, tmp_path):
        await until(lambda: len(there(tmp_path)) == 2, "both are there")
        victim, other = sorted(there(tmp_path))
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(there(tmp_path)) == 3, "there is a new one")
        assert lives(other)
        assert not lives(victim)


async def test_one_that_died_is_not_called_well_by_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys; os.write(int(sys.stdin.buffer.read1()), b'STATUS=All well.'); sys.exit(3)"
    monkeypatch.setattr(workers_module, "reconnect_wait_s", lambda *_: 60.0)
    hearing, telling = notify.pair()
    with hearing, telling.socket:
        line = Handed(hearing, telling.socket.fileno())
        workers = Workers((sys.executable, "-c", code), [b"%d" % line.telling], 20.0, [line])
        task = asyncio.ensure_future(workers.run())
        await until(lambda: workers._running, "it has started")
        await until(lambda: not workers._running, "it has died")
        assert workers.report().sentence == "Worker 1: It died, and is started again."
        workers.stop()
        await asyncio.wait_for(task, 30)


async def test_one_that_dies_at_once_is_started_with_longer_and_longer_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    def wait_s(failures: int, _spread: float) -> float:
        waits.append(failures)
        return 0.001

    monkeypatch.setattr(workers_module, "reconnect_wait_s", wait_s)
    async with running(DYING, tmp_path, count=1):
        await until(lambda: len(waits) >= 4, "it died four times")
    assert waits[:4] == [1, 2, 3, 4]


async def test_one_that_does_not_stop_is_killed_when_patience_ends(tmp_path: Path) -> None:
    async with running(STUBBORN, tmp_path, patience_s=0.2):
        await until(lambda: len(there(tmp_path)) == 2, "both are there")
    assert not any(map(lives, there(tmp_path)))


async def test_a_stop_while_a_dead_worker_waits_to_be_started_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()

    def wait_s(_failures: int, _spread: float) -> float:
        waiting.set()
        return 3600.0

    monkeypatch.setattr(workers_module, "reconnect_wait_s", wait_s)
    async with running(DYING, tmp_path, count=1):
        await asyncio.wait_for(waiting.wait(), 20)


async def test_ctrl_c_in_a_terminal_does_not_reach_the_workers_past_their_parent(tmp_path: Path) -> None:
    async with running(PATIENT, tmp_path):
        await until(lambda: len(there(tmp_path)) == 2, "both are there")
        assert all(os.getpgid(pid) != os.getpgid(0) for pid in there(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
async def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(tmp_path), PATIENT)
    await until(lambda: len(there(tmp_path)) == 2, "both are there")
    parent.kill()
    await parent.wait()
    await until(lambda: not any(map(lives, there(tmp_path))), "no worker is left")


@pytest.mark.skipif(sys.platform != "linux", reason="as above")
def test_a_worker_whose_parent_is_gone_already_ends_before_it_begins() -> None:
    code = "from bridge.process.workers import end_with_parent; end_with_parent(2**22 + 1); print('at work')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")


class Idle(Running):
    """A process that has nothing to do until its stop."""

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        return (asyncio.sleep(60),)

    def take_no_more(self) -> int:
        return 0

    def finished(self) -> bool:
        return True

    async def leave(self) -> int:
        return 0


@pytest.mark.parametrize(("number", "orphaned"), [(PARENT_DIED, True), (signal.SIGTERM, False)])
async def test_a_worker_tells_its_parents_death_from_an_operators_stop(number: signal.Signals, orphaned: bool) -> None:
    """Also while `getppid` still shows the parent, as here: threads of a killed parent may outlive its first one."""
    idle = Idle(0)
    run = asyncio.ensure_future(idle.run())
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(run, 20)
    assert idle.orphaned is orphaned
