"""Changing a queue over the broker's own HTTP side, and what is counted of all that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("changes") / "data") as running:
        yield running


def patch(broker: BrokerProcess, name: str, values: Any) -> tuple[int, Any]:
    token = broker.token(port=broker.admin_port)
    return broker.http("PATCH", f"/namespaces/demo/queues/{name}", values, token=token)


def test_a_change_holds_and_leaves_the_rest(broker: BrokerProcess) -> None:
    """M5: also after the broker was killed."""
    name = broker.fresh_queue(max_delivery_count=4, user_metadata="note")
    status, told = patch(broker, name, {"lock_duration_ms": 5_000, "status": "SendDisabled"})
    assert status == 200
    broker.kill()
    broker.restart()
    for queue in (told, broker.queue(name)):
        assert (queue["lock_duration_ms"], queue["status"]) == (5_000, "SendDisabled")
        assert (queue["max_delivery_count"], queue["user_metadata"]) == (4, "note")


@pytest.mark.parametrize(
    "values",
    [
        {"path": "other"},
        {"created_at_ms": 1},
        {"max_delivery_count": 0},
        {"status": "Sleeping"},
        {"requires_duplicate_detection": True},
        {"colour": "red"},
    ],
    ids=str,
)
def test_a_change_that_cannot_be_is_refused(broker: BrokerProcess, values: dict[str, Any]) -> None:
    """M5: and changes nothing."""
    name = broker.fresh_queue()
    before = broker.queue(name)
    status, told = patch(broker, name, values)
    assert status == 400
    assert told["error"].endswith(".")
    assert broker.queue(name) == before


@pytest.mark.parametrize("field", ["forward_to", "forward_dead_lettered_messages_to"])
def test_a_forward_may_be_a_url_of_this_namespace(broker: BrokerProcess, field: str) -> None:
    """M14: the same of a queue and of a subscription, new or changed."""
    target, source, topic = broker.fresh_queue(), broker.fresh_queue(), broker.fresh_topic()
    url = f"sb://localhost:{broker.port}/{target.upper()}"
    status, told = patch(broker, source, {field: url})
    assert (status, told[field]) == (200, target)
    assert broker.create_queue(f"{source}-new", **{field: url})[field] == target
    assert broker.create_subscription(topic, "s", **{field: url})[field] == target


@pytest.mark.parametrize("field", ["forward_to", "forward_dead_lettered_messages_to"])
def test_a_forward_to_another_host_is_refused(broker: BrokerProcess, field: str) -> None:
    """M14: although an entity of that name is here."""
    target, source, topic = broker.fresh_queue(), broker.fresh_queue(), broker.fresh_topic()
    values = {field: f"sb://elsewhere.example/{target}"}
    token = broker.token(port=broker.admin_port)
    new = "/namespaces/demo/queues/never-made"
    subscription = f"/namespaces/demo/topics/{topic}/subscriptions/s"
    for method, path in (
        ("PATCH", f"/namespaces/demo/queues/{source}"),
        ("PUT", new),
        ("PUT", subscription),
    ):
        status, told = broker.http(method, path, values, token=token)
        assert (status, "elsewhere.example" in told["error"]) == (400, True), told
    assert broker.queue(source)[field] is None
    for path in (new, subscription):
        assert broker.http("GET", path, token=token)[0] == 404


def test_a_queue_that_does_not_exist_cannot_be_changed(broker: BrokerProcess) -> None:
    """M5"""
    status, told = patch(broker, "nothing-here", {})
    assert status == 404
    assert "nothing-here" in told["error"]


def test_requests_of_the_administration_protocol_are_counted(broker: BrokerProcess) -> None:
    """C1: with their entity; what does not exist counts for the namespace."""

    def counted() -> dict[str, int]:
        listed = broker.admin("GET", "/namespaces/demo/operations")["totals"]
        return {e["entity"]: e["calls"] for e in listed if e["operation"] == "administration"}

    name, token = broker.fresh_queue(), {"Authorization": broker.token(port=broker.admin_port)}
    before = counted()
    for path in (f"/{name}", f"/{name}", "/$namespaceinfo", "/nothing-here"):
        assert broker.raw_http("GET", path, headers=token)[0] == 200
    after = counted()
    assert after[name] == 2
    assert after[""] - before.get("", 0) == 2
    assert "nothing-here" not in after
