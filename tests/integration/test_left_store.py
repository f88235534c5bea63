"""The commands on a store that no route uses any more: what is left there can be looked at, and acted on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.devstack.service import free_ports
from tests.integration.test_cli import Shell

pytestmark = pytest.mark.redis

IN_BROKER = "Messages wait in the broker, where none can be shown"
CANNOT_TELL = "Whether Redis still holds messages of previous settings is not known: Redis does not answer"
ORDERS = '[routes.orders]\nintercept = "orders.delay"\ndeliver_to = "orders"\n'
BILLS = '[routes.bills]\nintercept = "bills.delay"\ndeliver_to = "bills"\n'
LEVELS, KAFKA = 'mode = "levels"\n', 'broker = "kafka"\n'


class LeftStore(Shell):
    """Commands whose settings change."""

    def change(self, *routes: str, url: str | None = None, shards: int = 8) -> None:
        """Other routes from now on; ``url`` "" names no Redis."""
        where = "" if url == "" else f'url = "{url or self.url}"\n'
        Path("postdate.toml").write_text(
            f'[redis]\n{where}key_prefix = "{self.prefix}"\ndurability = "none"\nshards = {shards}\n{"".join(routes)}'
        )


@pytest.fixture
def shell(
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> LeftStore:
    for name in [name for name in os.environ if name.startswith("POSTDATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    made = LeftStore(redis_url, key_prefix, capsys)
    made.change(ORDERS)
    return made


def test_dead_letters_of_routes_that_need_no_store_any_more_are_listed_shown_retried_and_cancelled(
    shell: LeftStore,
) -> None:
    first, second = shell.dead("unroutable: no queue"), shell.dead("forbidden: not you")
    shell.change(ORDERS, LEVELS)
    assert {row["id"] for row in shell.rows("list", "--state", "dead")} == {first, second}
    assert json.loads(shell("show", first, "-o", "json"))["body"] == "dead body"
    assert json.loads(shell("stats", "-o", "json"))["dead"] == 2
    assert "none. No route has a store" in shell("stats")
    assert shell.rows("list", "--route", "orders") == []
    assert f"Warning: Route orders has no store (mode levels). {IN_BROKER}" in shell.said
    assert json.loads(shell("retry", "--all", "--reason", "unroutable", "--yes", "-o", "json"))["done"] == 1
    assert shell.states() == {first: "parked", second: "dead"}
    assert [row["state"] for row in shell.rows("cancel", first, second)] == ["cancelled", "cancelled"]
    for words in (["list", "--state", "dead"], ["stats"], ["show", first]):
        assert shell.ended(*words) == (5, "")
        assert f"route orders has no store (mode levels). {IN_BROKER}" in shell.said


def test_what_is_still_parked_is_found_by_its_key_and_moved(shell: LeftStore) -> None:
    message_id = shell.send("--key", "order-1")
    shell.change(ORDERS, LEVELS)
    (moved,) = shell.rows("reschedule", "--key", "order-1", "--in", "2h")
    assert (moved["id"], moved["state"]) == (message_id, "parked")
    assert shell.ended("cancel", "--key", "order-2", "--route", "orders")[0] == 3
    assert f"on route 'orders'. Route orders has no store (mode levels). {IN_BROKER}" in shell.said
    assert shell.ended("send", "orders", "body", "--in", "1h")[0] == 5
    assert [row["state"] for row in shell.rows("cancel", "--key", "order-1", "--route", "orders")] == ["cancelled"]


@pytest.mark.parametrize("beside", ["bills of Kafka", "bills of RabbitMQ", "bills of Kafka alone"])
def test_what_is_left_is_seen_beside_a_route_that_has_a_store(shell: LeftStore, beside: str) -> None:
    """The first has a store of its own, the second shares it, and in the third the old route is gone altogether."""
    message_id = shell.dead("unroutable: no queue", b"order-1")
    bills = BILLS if beside == "bills of RabbitMQ" else f"{BILLS}{KAFKA}"
    shell.change(*([] if "alone" in beside else [ORDERS, LEVELS]), bills)
    (row,) = shell.rows("list", "--state", "dead")
    assert (row["id"], row["route"]) == (message_id, "orders")
    assert json.loads(shell("show", message_id, "-o", "json"))["body"] == "dead body"
    assert shell.rows("list", "--route", "bills") == []
    assert shell.said == ""
    assert [row["state"] for row in shell.rows("cancel", message_id)] == ["cancelled"]


def test_a_route_without_a_store_of_which_nothing_can_be_left_is_refused_beside_one_with_a_store(
    shell: LeftStore,
) -> None:
    shell.change(ORDERS, LEVELS, BILLS, KAFKA)
    assert shell.rows("list") == []
    assert shell.ended("list", "--route", "orders") == (5, "")
    assert f"route orders has no store (mode levels). {IN_BROKER}" in shell.said


def test_a_redis_that_is_away_is_spoken_of_only_where_somebody_has_named_it(shell: LeftStore) -> None:
    shell.change(ORDERS, LEVELS, url=f"redis://127.0.0.1:{free_ports(1)[0]}")
    assert shell.ended("list") == (5, "")
    assert IN_BROKER in shell.said
    assert CANNOT_TELL in shell.said
    shell.change(ORDERS, LEVELS, url="")
    assert shell.ended("list") == (5, "")
    assert CANNOT_TELL not in shell.said


def test_a_store_of_before_that_was_made_with_other_shards_is_said_and_hides_no_other(shell: LeftStore) -> None:
    shell.dead("unroutable: no queue")
    shell.change(ORDERS, LEVELS, shards=16)
    assert shell.ended("list")[0] == 1
    assert "Set redis.shards = 8" in shell.said
    shell.change(ORDERS, LEVELS, BILLS, KAFKA, shards=16)
    assert shell.rows("list") == []
    assert "Warning: cannot read the RabbitMQ messages that remain in Redis: the store was made with 8" in shell.said


class TestRenamed:
    def told(self, shell: LeftStore, subject: str) -> list[tuple[str, str]]:
        """What check says of it; no broker is there, so it never ends well."""
        code, out = shell.ended("check", "-o", "json")
        assert code == 4
        return [(row["level"], row["text"]) for row in json.loads(out) if row["subject"] == subject]

    def test_what_is_parked_under_a_name_that_is_gone_is_told_of_before_it_is_due(self, shell: LeftStore) -> None:
        shell.send("--routing-key", "k")
        assert self.told(shell, "route orders") == []
        shell.change(BILLS)
        ((level, text),) = self.told(shell, "route orders")
        assert (level, text.partition(":")[0]) == (
            "WARN",
            'route "orders" is not configured and has parked messages',
        )
        assert [row["route"] for row in shell.rows("list", "--route", "orders")] == ["orders"]

    @pytest.mark.parametrize("changed", [(BILLS, KAFKA), (BILLS, KAFKA, ORDERS, KAFKA), (BILLS, LEVELS)])
    def test_so_it_is_when_it_was_the_only_one_that_needed_a_store_of_its_broker(
        self, shell: LeftStore, changed: tuple[str, ...]
    ) -> None:
        shell.send("--routing-key", "k")
        shell.change(*changed)
        ((level, text),) = self.told(shell, "route orders")
        assert (level, "is not configured" in text) == ("WARN", True)

    def test_a_route_that_has_only_another_mode_is_not_meant(self, shell: LeftStore) -> None:
        shell.send("--routing-key", "k")
        shell.change(ORDERS, LEVELS, BILLS)
        assert self.told(shell, "route orders") == []

    def test_all_are_counted_however_many_are_due_before_them(self, shell: LeftStore) -> None:
        for number in range(20):
            shell.send("--routing-key", str(number))
        shell.change(BILLS)
        ((_, text),) = self.told(shell, "route orders")
        assert text.startswith('route "orders" is not configured and has parked messages: 20. ')

    def test_on_a_cluster_the_same_is_seen(
        self, shell: LeftStore, redis_cluster_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shell, "url", redis_cluster_url)
        shell.change(ORDERS)
        message_id = shell.dead("unroutable: no queue")
        shell.send("--routing-key", "k")
        shell.change(BILLS)
        ((_, text),) = self.told(shell, "route orders")
        assert text.startswith('route "orders" is not configured and has parked messages: 1')
        shell.change(ORDERS, LEVELS)
        assert [row["id"] for row in shell.rows("list", "--state", "dead")] == [message_id]
