"""What is said of messages that are parked under routes which the settings do not have."""

from __future__ import annotations

from bridge.admin.strays import Looked, strays


def test_only_routes_that_the_settings_do_not_have_are_told_of() -> None:
    looked = Looked({"orders": 7, "bills": 1, "audits": 2}, 10, 10)
    (audits, one_bill) = strays(looked, ["orders"], "RabbitMQ")
    assert audits[0] == "audits"
    assert audits[1].startswith(
        "2 messages are parked in Redis under this name, which no route of RabbitMQ has in the settings: nobody "
        "delivers them when they are due, unless another instance has the route; put it back, by that name, until "
        "`postdate list --route audits` shows none"
    )
    assert one_bill[1].startswith("1 message is parked in Redis under this name")
    assert "nobody delivers it when it is due" in one_bill[1]
    assert list(strays(looked, looked.routes, "RabbitMQ")) == []


def test_where_not_all_were_looked_at_it_is_said_which() -> None:
    looked = Looked({"bills": 3, "orders": 1997}, 2000, 1_000_000)
    ((_, text),) = strays(looked, ["orders"], "Kafka")
    assert text.startswith("of the 2000 messages that are due next, among 1000000 parked, 3 are parked in Redis under")
    assert Looked({}, 5, 5).share == ""
