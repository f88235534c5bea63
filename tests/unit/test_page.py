"""The files of the page: what is served, with which headers, and that nothing comes from another host."""

from __future__ import annotations

import re
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from bridge.http.access import CSP, Role
from bridge.http.app import guarded_routes
from bridge.http.page import based, read_files
from bridge.operate.describe import past_of
from bridge.parking.history import HistoryRow, PastState
from bridge.settings.model import Http, Ui
from tests.api import api, settings

ROOT = Path(__file__).parents[2]
FILES = read_files()
VENDORED = tomllib.loads((ROOT / "deploy" / "vendored.toml").read_text())
OWN = {name: file.content.decode() for name, file in FILES.items() if not name.startswith("vendor/")}
CODE_MAX = 150 * 1024


def test_the_vendored_files_are_the_published_ones() -> None:
    found = {name: sha256(file.content).hexdigest() for name, file in FILES.items() if name.startswith("vendor/")}
    assert found == {f"vendor/{name}": sha for package in VENDORED.values() for name, sha in package["files"].items()}
    assert all(package["version"] and package["license"] for package in VENDORED.values())


def test_the_page_loads_nothing_from_another_host() -> None:
    addresses = {name: re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text) for name, text in OWN.items()}
    namespace = "http://www.w3.org/2000/svg"
    assert {
        name: rest
        for name, found in addresses.items()
        if (rest := [address for address in found if address != namespace])
    } == {}


def test_every_link_of_the_shell_is_relative_and_leads_to_a_file() -> None:
    links = re.findall(r'(?:src|href)="([^"]+)"', OWN["index.html"])
    assert links
    assert {link for link in links if link.removeprefix("page/") not in FILES} == set()


def test_every_import_of_a_script_leads_to_a_file() -> None:
    wrong = [
        (name, module)
        for name, text in OWN.items()
        for module in re.findall(r'from "([^"]+)"', text)
        if module.removeprefix("./") not in FILES
    ]
    assert wrong == []


def test_the_shell_has_no_inline_script_and_no_style() -> None:
    shell = OWN["index.html"]
    assert re.findall(r"<script(?![^>]*\bsrc=)", shell) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", shell) == []
    assert "unsafe" not in CSP


def test_scripts_make_no_code_and_no_markup_from_text() -> None:
    dangers = r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet"
    assert {name: found for name, text in OWN.items() if (found := re.findall(dangers, text))} == {}


def test_the_whole_page_is_small() -> None:
    size = sum(len(file.content) for name, file in FILES.items() if not name.endswith(".LICENSE"))
    assert size < CODE_MAX + len(FILES["vendor/uplot.js"].content)
    assert len(OWN["app.css"].splitlines()) <= 300


async def test_the_page_needs_no_token_and_is_asked_for_again_with_its_tag() -> None:
    async with api(None) as here:
        for path in ("/", "/page/app.js", "/page/vendor/uplot.js"):
            first = await here.client.get(path)
            assert first.status_code == 200
            assert first.headers["cache-control"] == "private, no-cache"
            assert first.headers["content-security-policy"] == CSP
            again = await here.client.get(path, headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert (await here.client.head(path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/app.css", "text/css; charset=utf-8"),
        ("/page/app.js", "text/javascript; charset=utf-8"),
        ("/page/mark.svg", "image/svg+xml"),
    ],
)
async def test_each_file_has_its_type(path: str, kind: str) -> None:
    async with api(None) as here:
        assert (await here.client.get(path)).headers["content-type"] == kind


@pytest.mark.parametrize("path", ["/page/", "/page/index.html", "/page/nothing.js", "/page/../page.py", "/page/vendor"])
async def test_other_files_are_not_served(path: str) -> None:
    async with api(None) as here:
        assert (await here.client.get(path)).status_code in (400, 404)


def test_files_of_other_types_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("private")
    (tmp_path / "app.js").write_text("1")
    assert list(read_files(tmp_path)) == ["app.js"]


async def test_without_the_page_the_api_still_answers() -> None:
    async with api(Role.VIEWER, settings(ui=Ui(enabled=False))) as here:
        assert (await here.client.get("/")).status_code == 404
        assert await here.get("/me") == {"role": "viewer", "name": "viewer"}


async def test_the_page_names_the_prefix_that_the_proxy_or_the_setting_gives() -> None:
    async with api(None) as here:
        assert "<base" not in (await here.client.get("/")).text
        forwarded = await here.client.get("/", headers={"X-Forwarded-Prefix": "/ops/delay"})
        assert '<base href="/ops/delay/">' in forwarded.text
    async with api(None, settings(http=Http(base_path="/postdate"))) as here:
        for path in ("/", "/postdate", "/postdate/"):
            assert '<base href="/postdate/">' in (await here.client.get(path)).text
        assert (await here.client.get("/postdate/page/app.js")).status_code == 200


def test_a_prefix_cannot_break_out_of_its_attribute() -> None:
    assert based("<!-- base -->", '/a"><script>') == '<base href="/a&quot;&gt;&lt;script&gt;/">'


def test_the_page_reads_of_a_delivery_what_the_api_sends() -> None:
    row = HistoryRow(
        b"1gd4r5kq2000ab3c9d00", "orders", b"k", PastState.DELIVERED, 1, 10, 11, 12, 13, 0, 5, "", "rabbitmq"
    )
    sent = past_of(row).as_dict()
    (read,) = re.findall(r"const lateness = \(one\) => (.*);", OWN["messages.js"])
    assert set(re.findall(r"one\.(\w+)", read)) <= sent.keys()
    assert sent["late_ms"] == 3


def test_the_page_says_what_it_does_not_know() -> None:
    overview = OWN["overview.js"]
    assert overview.index("if (!list) return") < overview.index("The canary is off")
    assert "line.error ? html`<${Unknown} error=${line.error} />`" in overview
    assert "!routes && poll.error && html`<${Unknown} error=${poll.error} />`" in overview


def test_the_page_sends_no_parameter_that_the_api_refuses() -> None:
    reads = [route for route in guarded_routes() if "GET" in (route.methods or ())]
    known = {route.path.removeprefix("/api/v1/"): route._parameters() for route in reads}
    polls = re.findall(r'usePoll\([^,"]*"([\w/]+)"[^,]*, \{([^}]+)\}', "".join(OWN.values()))
    assert {path for path, _ in polls} >= {"status", "messages", "search", "timeline"}
    for path, query in polls:
        sent = {part.partition(":")[0].strip() for part in query.split(",") if "..." not in part}
        assert sent <= known[path], path
