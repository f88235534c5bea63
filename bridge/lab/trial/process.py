"""A ``postdate run`` as a process of ours, with a temporary settings file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from bridge.core.errors import PostdateError
from bridge.lab.trial.config import as_toml
from bridge.settings import Settings
from bridge.settings.names import PREFIX

_READY_S = 20.0
_POLL_S = 0.05
_PATIENCE_S = 3.0
_TAIL_BYTES = 2000
# Ends with us, also when we are killed. -P: or a folder named "bridge" in the current directory would be imported.
_RUN = (
    "import sys; from bridge.process.workers import end_with_parent; end_with_parent(int(sys.argv.pop(1))); "
    "from bridge.cli import main; main()"
)


class BridgeFailed(PostdateError):
    """The bridge did not start, or ended by itself (exit 1); the text holds the last that it said."""


class BridgeProcess:
    """Starts at once; ends with the ``with`` block, and its settings file, which holds secrets, with it."""

    def __init__(self, settings: Settings) -> None:
        self._grace_s = settings.bridge.shutdown_grace / 1000
        self._folder = Path(tempfile.mkdtemp(prefix="postdate-"))  # for its owner alone
        self._log = self._folder / "log"
        file = self._folder / "postdate.toml"
        try:
            file.write_text(as_toml(settings), encoding="utf-8")
            # All settings stand in the file. The user's own routes in the environment would be added to them.
            environ = {name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)}
            with self._log.open("wb") as log:
                command = (sys.executable, "-P", "-c", _RUN, str(os.getpid()), "run", "--config", str(file))
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and no shell
                    command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that was started; with several workers it is their parent."""
        return self._process.pid

    def check(self) -> None:
        """Raise ``BridgeFailed`` if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise BridgeFailed(f"The bridge ended by itself with exit code {code}. It said: {self._last_words()}")

    def wait_ready(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready`` says so. Raises ``BridgeFailed`` if it ends first or takes more than 20 s."""
        give_up = time.monotonic() + _READY_S
        while not ready():
            self.check()
            if time.monotonic() > give_up:
                raise BridgeFailed(f"The bridge was not ready within {_READY_S:.0f} s. It said: {self._last_words()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop it in good order, or else kill it; then delete its files. Does nothing the second time."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._grace_s + _PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _last_words(self) -> str:
        try:
            text = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return text.rpartition("\n")[2] or "nothing"
