"""The delayed-message plugin for a RabbitMQ of the tests' own: the real one where it is given, else a stand-in.

``POSTDATE_TEST_DELAYED_PLUGIN`` names the real one, its .ez or folder ``rabbitmq_delayed_message_exchange-3.10.2``.
The stand-in is ours, of two small Erlang modules. It is compiled once, against the RabbitMQ of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import blake2b
from pathlib import Path

from tests.devstack.rabbitmq import find_place
from tests.devstack.service import Unavailable, devstack_folder, machine_lock

VARIABLE = "POSTDATE_TEST_DELAYED_PLUGIN"
_SOURCE = Path(__file__).parent / "delayed_stand_in"
_NAME = "postdate_delayed_stand_in"


def find_plugin() -> Path:
    """The plugin's .ez file or folder."""
    given = os.environ.get(VARIABLE)
    if given:
        if not Path(given).exists():
            raise Unavailable(f"{VARIABLE} names {given}, which does not exist")
        return Path(given).resolve()
    return _stand_in()


def is_real() -> bool:
    """Whether the tests use the real plugin."""
    return bool(os.environ.get(VARIABLE))


def _stand_in() -> Path:
    files = sorted(_SOURCE.iterdir())
    version = blake2b(b"".join(file.read_bytes() for file in files), digest_size=4).hexdigest()
    folder = devstack_folder() / f"delayed-stand-in-{version}" / f"{_NAME}-1"
    with machine_lock("delayed-stand-in"):
        if not (folder / "ebin" / f"{_NAME}.app").exists():
            _compile(folder / "ebin")
    return folder


def _compile(folder: Path) -> None:
    erlc = shutil.which("erlc")
    if erlc is None:
        raise Unavailable("no erlc on this machine: the stand-in for the delayed-message plugin cannot be compiled")
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "ERL_LIBS": find_place().plugins}
    command = [erlc, "-o", str(folder), *map(str, _SOURCE.glob("*.erl"))]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        raise Unavailable(f"the stand-in for the delayed-message plugin does not compile: {ended.stdout}{ended.stderr}")
    shutil.copy(_SOURCE / f"{_NAME}.app", folder)
