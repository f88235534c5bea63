"""The wheel in an environment without the source tree, and beside packages called `bridge` and `adapters`."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.bridge_line import QUICK, merged
from tests.bridge_process import ROOT
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import clean_env, free_ports, wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Packages of PyPI have these names, too.
NAMESAKES = ("bridge", "adapters")
NAMESAKE = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "9.9"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]
"""


def run(command: Sequence[str | Path], folder: Path, code: int = 0) -> str:
    """Run a program in a folder. Return what it wrote."""
    environ = clean_env(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore", NO_COLOR="1")
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a wheel or an sdist of the project in ``source``."""
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target], source)
    (built,) = target.iterdir()
    return built


def contents(wheel: Path) -> dict[str, int]:
    """The checksum of every file, without the record of the files."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist() if not entry.filename.endswith("RECORD")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


class Environment:
    """A virtual environment that finds the libraries of the tests' environment, and nothing else of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
        libraries = next(folder.glob("lib/python*/site-packages"))
        # A path file inside that folder, as an editable install leaves it, has no effect from here.
        (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib"))
        self.libraries = libraries

    def pip(self, *words: str | Path) -> None:
        run([sys.executable, "-m", "pip", "-q", "--python", self.folder / "bin/python", *words], self.folder)

    def install(self, wheel: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", wheel)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """postdate's wheel, with a package of each of these names installed after it."""
    environment = Environment(tmp_path_factory.mktemp("fresh") / "environment")
    environment.install(wheel)
    for name in NAMESAKES:
        project = tmp_path_factory.mktemp(name)
        (project / name).mkdir()
        (project / name / "__init__.py").write_text(f"WHO = {name!r}\n")
        (project / "pyproject.toml").write_text(NAMESAKE.format(name=name))
        environment.install(build(project, project / "dist", "wheel"))
    return environment


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory whose folders have the names of our packages, and end a program that imports them."""
    for name in (*NAMESAKES, "postdate"):
        (tmp_path / name).mkdir()
    for name in NAMESAKES:
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(99)\n")
    return tmp_path


def test_the_wheel_installs_one_package_with_everything_that_is_shipped(wheel: Path) -> None:
    names = set(contents(wheel))
    assert {name.partition("/")[0] for name in names} == {"postdate", "postdate-0.1.0.dist-info"}
    tracked = run(["git", "ls-files", "bridge", "adapters"], ROOT).split()
    assert {f"postdate/{name}" for name in tracked} <= names
    assert {"postdate/py.typed", "postdate-0.1.0.dist-info/licenses/LICENSE"} <= names
    assert [name for name in names if "tests" in name.split("/")] == []


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "again", "wheel")
    assert contents(again) == contents(wheel)


def test_the_command_runs_beside_packages_and_folders_of_the_same_names(
    environment: Environment, elsewhere: Path
) -> None:
    postdate, python = environment.folder / "bin/postdate", environment.folder / "bin/python"
    assert run([postdate, "--version"], elsewhere) == "postdate 0.1.0\n"
    assert run([python, "-P", "-m", "postdate", "--version"], elsewhere) == "postdate 0.1.0\n"
    assert "postdate demo" in run([postdate, "demo", "--help"], elsewhere)
    assert "No route is set" in run([postdate, "run"], elsewhere, code=2)


def test_other_packages_of_these_names_stay_whole_and_are_found_by_their_users(
    environment: Environment, tmp_path: Path
) -> None:
    look = (
        "import adapters, bridge, sys; "
        "from postdate.producers.aiokafka import DelayProducer; "
        "from postdate.producers.confluent_kafka import DelaySerializingProducer; "
        "print(bridge.WHO, adapters.WHO, len([name for name in sys.path if name.endswith('postdate')]))"
    )
    assert run([environment.folder / "bin/python", "-P", "-c", look], tmp_path) == "bridge adapters 0\n"


def test_an_uninstall_leaves_no_file(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    before = set(environment.libraries.iterdir())
    environment.install(wheel)
    environment.pip("uninstall", "-y", "postdate")
    assert set(environment.libraries.iterdir()) == before


@pytest.mark.rabbitmq
@pytest.mark.redis
def test_workers_of_the_wheel_run_its_own_code_from_such_a_folder(
    environment: Environment, elsewhere: Path, rabbitmq: RabbitMQ, redis_server: Redis
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    own = {"bridge": {"workers": 2}, "http": {"listen": address}, "canary": {"enabled": False}}
    settings = merged(QUICK, own)
    with Line(rabbitmq.url, redis_server.url, elsewhere, settings) as line:
        command = (environment.folder / "bin/postdate", "run", "--config", line.file())
        with (elsewhere / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=elsewhere, env=clean_env(), stdout=log, stderr=log)
        try:
            line.publish(Props([delay(300)]), b"by a worker of the wheel")
            assert line.receive()[0].body == b"by a worker of the wheel"
            wait_for(lambda: urlopen(f"http://{address}/livez", timeout=5).status == 200, "the HTTP process answers")
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
        assert "all workers have stopped" in (elsewhere / "log").read_text()


def test_this_environment_does_not_see_the_source_tree(environment: Environment) -> None:
    where = "import sys; from postdate import HOME; print(HOME); print(sys.path)"
    home, paths = run([environment.folder / "bin/python", "-P", "-c", where], environment.folder).splitlines()
    assert home == str(environment.libraries / "postdate")
    assert str(ROOT) + os.sep not in paths.replace(str(sysconfig.get_path("purelib")), "")
    assert f"'{ROOT}'" not in paths
