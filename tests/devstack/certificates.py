"""A private authority, and certificates that it has signed, as PEM files; made with the machine's OpenSSL."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.devstack import debian
from tests.devstack.service import Unavailable

_DAYS = "30"
_LOOPBACK = "IP:127.0.0.1,DNS:localhost"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Signed:
    """A certificate, its key, and both in one file with the authority's behind them."""

    cert: Path
    key: Path
    chain: Path


class Authority:
    """A certificate authority of the tests. ``ca`` is its own certificate."""

    def __init__(self, folder: Path, name: str = "postdate tests") -> None:
        if shutil.which("openssl") is None:
            debian.install("openssl")
        self._folder = folder
        self.ca, self._key = folder / f"{name}.ca.pem", folder / f"{name}.ca.key"
        made = ("-keyout", str(self._key), "-out", str(self.ca), "-days", _DAYS, "-subj", f"/CN={name}")
        _openssl("req", "-x509", *_KEY, *made)

    def sign(self, name: str, hosts: str = _LOOPBACK, days: str = _DAYS) -> Signed:
        """For a server on this machine's loopback address, or for a client of that name. With ``days`` below zero it
        has expired."""
        cert, key, request, chain = (self._folder / f"{name}.{end}" for end in ("pem", "key", "csr", "chain.pem"))
        _openssl("req", "-new", *_KEY, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        more = self._folder / f"{name}.ext"
        more.write_text(f"subjectAltName={hosts}\n")
        ours = ("-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial", "-days", days)
        _openssl("x509", "-req", "-in", str(request), *ours, "-extfile", str(more), "-out", str(cert))
        chain.write_text(key.read_text() + cert.read_text() + self.ca.read_text())
        return Signed(cert, key, chain)


def _openssl(*words: str) -> None:
    done = subprocess.run(("openssl", *words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"openssl {words[0]} failed: {done.stderr[-500:]}")
