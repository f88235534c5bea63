"""PostgreSQL and MariaDB of Debian, for the journal: each a server of its own, with its own port and data folder."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import asyncmy
import asyncpg  # type: ignore[import-untyped]

from tests.devstack import debian
from tests.devstack.process import Launch, ProcessRunner
from tests.devstack.service import Service, Unavailable, clean_env, free_ports, new_folder

#: PostgreSQL refuses to run as root. This user may do nothing else.
_NOBODY = 65534


class PostgreSQL(Service):
    """One server; the user ``postdate`` needs no password."""

    name = "postgresql"

    @classmethod
    def launch(cls) -> Self:
        """An owned server, ready."""
        binaries = find_postgresql()
        port, folder = free_ports(1)[0], new_folder("postgresql")
        data, user = folder / "data", _user(folder)
        env = clean_env(HOME=str(folder))
        data.mkdir()
        if user:
            os.chown(data, _NOBODY, _NOBODY)
        initdb = (*user, str(binaries / "initdb"), "-D", str(data), "-U", "postdate", "-A", "trust", "-E", "UTF8")
        subprocess.run([*initdb, "--no-sync"], env=env, check=True, capture_output=True, timeout=60)
        server = (*user, str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(data))
        runner = ProcessRunner(Launch((*server, "-c", "listen_addresses=127.0.0.1"), folder, env))
        return cls(f"postgresql://postdate@127.0.0.1:{port}/postgres", runner).start_new()

    def probe(self) -> None:
        asyncio.run(self._execute("SELECT 1"))

    def _empty(self) -> None:
        asyncio.run(self._execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public"))

    def execute(self, statement: str) -> None:
        """Run a statement as the owner."""
        asyncio.run(self._execute(statement))

    async def _execute(self, statement: str) -> None:
        connection: Any = await asyncpg.connect(self.url, timeout=5)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


class MariaDB(Service):
    """One server; the user ``root`` needs no password."""

    name = "mariadb"
    database: ClassVar[str] = "postdate"

    def __init__(self, url: str, runner: ProcessRunner, port: int) -> None:
        super().__init__(url, runner)
        self.port = port

    @classmethod
    def launch(cls) -> Self:
        """An owned server, ready."""
        server, install = find_mariadb()
        port, folder = free_ports(1)[0], new_folder("mariadb")
        data, env = folder / "data", clean_env(HOME=str(folder))
        user = ("--user=root",) if os.geteuid() == 0 else ()
        made = (install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", *user)
        subprocess.run(made, env=env, check=True, capture_output=True, timeout=60)
        options = (f"--datadir={data}", f"--socket={data}/socket", "--bind-address=127.0.0.1", f"--port={port}")
        packet = "--max-allowed-packet=64M"  # the default of 16M is less than limits.max_body needs
        runner = ProcessRunner(Launch((server, "--no-defaults", *options, packet, *user), folder, env))
        return cls(f"mariadb://root@127.0.0.1:{port}/{cls.database}", runner, port).start_new()

    def probe(self) -> None:
        self.execute(f"CREATE DATABASE IF NOT EXISTS {self.database}")

    def _empty(self) -> None:
        self.execute(f"DROP DATABASE {self.database}")
        self.execute(f"CREATE DATABASE {self.database}")

    def execute(self, statement: str) -> None:
        """Run a statement as root."""
        asyncio.run(self._execute(statement))

    async def _execute(self, statement: str) -> None:
        connection: Any = await asyncmy.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=5)
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
        connection.close()


#: How to start each, by the name of its URLs' scheme.
DATABASES: dict[str, Callable[[], Service]] = {"postgresql": PostgreSQL.launch, "mariadb": MariaDB.launch}


def find_postgresql() -> Path:
    """The folder of the newest PostgreSQL's programs; installed where it is missing and may be."""
    for attempt in range(2):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
        if found:
            return found[-1].parent
        if not attempt:
            debian.install("postgresql")
    raise Unavailable("no PostgreSQL on this machine")


def find_mariadb() -> tuple[str, str]:
    """The server, and the program that makes its data folder; installed where they are missing and may be."""
    for attempt in range(2):
        server = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        install = shutil.which("mariadb-install-db")
        if server and install:
            return server, install
        if not attempt:
            debian.install("mariadb-server-core", "mariadb-client-core")
    raise Unavailable("no MariaDB on this machine")


def prepare() -> None:
    """Fetch what a first run has to fetch."""
    find_postgresql()
    find_mariadb()


def _user(folder: Path) -> tuple[str, ...]:
    """Return what runs a program as another user than root, to whom the folder is open."""
    if os.geteuid() != 0:
        return ()
    folder.chmod(0o711)
    return ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
