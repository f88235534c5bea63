"""A small OAuth 2 server: client credentials for its clients, and tokens that brokers can check by its public key."""

from __future__ import annotations

import base64
import json
import math
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from tests.devstack.certificates import Signed

SECRET = "correct horse; battery staple: ä"
KEY_ID = "tests"


class Issuer:
    """The server, until ``close``. Tokens live for ``lifetime_s``; ``clients`` are the secrets by client id.

    ``issued`` counts tokens. With ``failing`` it answers 503.
    """

    def __init__(self, folder: Path, signed: Signed | None = None, audience: str = "broker") -> None:
        """``signed``: its certificate; without, it speaks plain HTTP."""
        self._key, self.jwks = folder / "oauth.key", folder / "jwks.json"
        _openssl("genrsa", "-out", str(self._key), "2048")
        modulus = _openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().partition("=")[2]
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID, "e": "AQAB"}
        self.jwks.write_text(json.dumps({"keys": [{**key, "n": _base64(bytes.fromhex(modulus))}]}))
        self.public = folder / "oauth.pub.pem"
        _openssl("rsa", "-in", str(self._key), "-pubout", "-out", str(self.public))
        self.clients = {"postdate": SECRET}
        self.audience, self.lifetime_s, self.issued, self.failing = audience, 300.0, 0, False
        #: The scopes that clients asked for.
        self.scopes: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if signed is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(signed.cert, signed.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if signed is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self.token_url = f"{self.url}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def token(self, client: str, scope: str = "", lifetime_s: float | None = None) -> str:
        """A signed token."""
        now = int(time.time())
        # Whole seconds, never less than ``expires_in`` says.
        expires = math.ceil(time.time() + (self.lifetime_s if lifetime_s is None else lifetime_s))
        claims = {"iss": self.url, "aud": self.audience, "sub": client, "scope": scope, "iat": now, "exp": expires}
        claims["jti"] = str(self.issued)
        parts = ({"alg": "RS256", "typ": "JWT", "kid": KEY_ID}, claims)
        text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        self.issued += 1
        return f"{text}.{_base64(_openssl('dgst', '-sha256', '-sign', str(self._key), text=text.encode()))}"

    def answer(self, path: str, authorization: str, form: Mapping[str, list[str]]) -> tuple[int, object]:
        """Status and JSON for a request."""
        if self.failing:
            return 503, {}
        if path == "/.well-known/openid-configuration":
            return 200, {"issuer": self.url, "token_endpoint": self.token_url, "jwks_uri": f"{self.url}/jwks"}
        if path == "/jwks":
            return 200, json.loads(self.jwks.read_text())
        if path != "/token" or form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        found = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.clients.get(found[0]) is None or self.clients[found[0]] != _unquoted(found[2]):
            return 401, {"error": "invalid_client", "error_description": "the secret is wrong"}
        scope = form.get("scope", [""])[0]
        self.scopes.add(scope)
        answer = {"access_token": self.token(found[0], scope), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, answer

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(*issuer.answer(self.path, "", {}))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self._send(*issuer.answer(self.path, self.headers.get("Authorization", ""), parse_qs(body)))

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent."""

            def _send(self, status: int, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


def _unquoted(text: str) -> str:
    return parse_qs(f"x={text}").get("x", [""])[0]


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(*words: str, text: bytes = b"") -> bytes:
    return subprocess.run(("openssl", *words), input=text, capture_output=True, check=True).stdout
