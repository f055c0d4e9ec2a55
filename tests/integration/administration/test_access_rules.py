"""Access rules over HTTP: who may make them, what is told about them, and what a new key does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient

RULES = "/namespaces/demo/rules"
KEYS = "/namespaces/demo/keys"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rules") / "data", queues=("orders",)) as running:
        yield running


@pytest.fixture
def rule(broker: BrokerProcess) -> Iterator[dict[str, Any]]:
    """A rule with Send, gone after the test."""
    name = f"rule-{uuid4().hex[:8]}"
    yield broker.admin("PUT", f"{RULES}/{name}", {"claims": ["send"]})
    broker.admin("DELETE", f"{RULES}/{name}")


def manage(broker: BrokerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    return broker.http(method, path, body, token=broker.token(port=broker.admin_port))


def status_of_token(broker: BrokerProcess, name: str, key: str) -> int:
    with WireClient(broker.port).open() as client:
        return client.put_token(broker.token(rule=(name, key)))


def test_a_new_rule_is_told_with_its_keys_and_opens_what_it_claims(
    broker: BrokerProcess, rule: dict[str, Any]
) -> None:
    """M6: both keys work at once."""
    assert rule["claims"] == ["Send"]
    for key in (rule["primary_key"], rule["secondary_key"]):
        with WireClient(broker.port).open() as client:
            assert client.put_token(broker.token(rule=(rule["name"], key))) == 202
            assert client.attach_sender("orders").peer.target is not None
            assert client.refusal(client.attach_receiver("orders")) == "amqp:unauthorized-access"


def test_the_list_of_rules_holds_names_and_claims_and_no_key(
    broker: BrokerProcess, rule: dict[str, Any]
) -> None:
    """M6: keys are told once, to whoever makes them."""
    listed = broker.admin("GET", RULES)
    assert {"name": rule["name"], "claims": ["Send"]} in listed
    assert {"name": broker.root_rule[0], "claims": ["Send", "Listen", "Manage"]} in listed
    assert all(set(each) == {"name", "claims"} for each in listed)


def test_a_new_key_takes_the_place_of_the_old_one_and_leaves_the_other(
    broker: BrokerProcess, rule: dict[str, Any]
) -> None:
    """M6: a key is changed while clients use the other."""
    status, told = manage(broker, "POST", f"{KEYS}/{rule['name']}/primary")
    assert (status, set(told)) == (200, {"name", "which", "key"})
    assert status_of_token(broker, rule["name"], told["key"]) == 202
    assert status_of_token(broker, rule["name"], rule["primary_key"]) == 401
    assert status_of_token(broker, rule["name"], rule["secondary_key"]) == 202


def test_a_changed_key_is_still_changed_after_a_restart(tmp_path: Any) -> None:
    """M6: rules and keys live in the data directory, and in no log."""
    with BrokerProcess(tmp_path / "data") as broker:
        made = broker.admin("PUT", f"{RULES}/kept", {"claims": ["Listen"]})
        changed = broker.admin("POST", f"{KEYS}/kept/secondary")["key"]
        broker.kill()
        broker.restart()
        assert status_of_token(broker, "kept", made["primary_key"]) == 202
        assert status_of_token(broker, "kept", changed) == 202
        assert status_of_token(broker, "kept", made["secondary_key"]) == 401
        for secret in (made["primary_key"], made["secondary_key"], changed):
            assert secret not in broker.log()


def test_a_deleted_rule_opens_nothing(broker: BrokerProcess) -> None:
    """M6: and its name can be used again."""
    first = broker.admin("PUT", f"{RULES}/passing", {"claims": ["Send"]})
    assert manage(broker, "DELETE", f"{RULES}/passing") == (204, None)
    assert status_of_token(broker, "passing", first["primary_key"]) == 401
    second = broker.admin("PUT", f"{RULES}/passing", {"claims": ["Send"]})
    assert second["primary_key"] != first["primary_key"]
    broker.admin("DELETE", f"{RULES}/passing")


def test_the_last_rule_with_manage_cannot_be_deleted(broker: BrokerProcess) -> None:
    """M6: a namespace that nobody can manage would be lost."""
    status, told = manage(broker, "DELETE", f"{RULES}/{broker.root_rule[0]}")
    assert status == 400
    assert "is the last one with the Manage claim" in told["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("PUT", f"{RULES}/x", None, 400, id="no claims"),
        pytest.param("PUT", f"{RULES}/x", {"claims": []}, 400, id="empty claims"),
        pytest.param("PUT", f"{RULES}/x", {"claims": "Send"}, 400, id="claims as text"),
        pytest.param("PUT", f"{RULES}/x", {"claims": [1]}, 400, id="a number as claim"),
        pytest.param("PUT", f"{RULES}/x", {"claims": ["Own"]}, 400, id="unknown claim"),
        pytest.param(
            "PUT", f"{RULES}/x", {"claims": ["Send"], "primary_key": "k"}, 400, id="own key"
        ),
        pytest.param("PUT", f"{RULES}/x", b"[" * 60_000, 400, id="deep nesting"),
        pytest.param("PUT", f"{RULES}/x%0d%0ay", {"claims": ["Send"]}, 400, id="name with CRLF"),
        pytest.param("PUT", f"{RULES}/{'x' * 51}", {"claims": ["Send"]}, 400, id="long name"),
        pytest.param(
            "PUT", f"{RULES}/RootManageSharedAccessKey", {"claims": ["Send"]}, 409, id="taken"
        ),
        pytest.param(
            "PUT", f"{RULES}/rootmanagesharedaccesskey", {"claims": ["Send"]}, 400, id="other case"
        ),
        pytest.param("DELETE", f"{RULES}/nobody", None, 404, id="delete unknown"),
        pytest.param("POST", f"{KEYS}/nobody/primary", None, 404, id="key of unknown"),
        pytest.param("POST", f"{KEYS}/RootManageSharedAccessKey/third", None, 404, id="third key"),
    ],
)
def test_a_wrong_request_changes_nothing(
    broker: BrokerProcess, method: str, path: str, body: Any, status: int
) -> None:
    """M6: and is answered with a sentence."""
    before = broker.admin("GET", RULES)
    answered, told = manage(broker, method, path, body)
    assert (answered, set(told)) == (status, {"error"})
    assert told["error"].endswith(".") and "\n" not in told["error"]
    assert broker.admin("GET", RULES) == before
    assert "Traceback" not in broker.log()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", RULES),
        ("PUT", f"{RULES}/x"),
        ("DELETE", f"{RULES}/RootManageSharedAccessKey"),
        ("POST", f"{KEYS}/RootManageSharedAccessKey/primary"),
    ],
)
def test_rules_and_keys_need_manage(
    broker: BrokerProcess, rule: dict[str, Any], method: str, path: str
) -> None:
    """M6: 401 without a token, 403 with one that has another claim; the root key still works."""
    body = {"claims": ["Manage", "Send", "Listen"]}
    send_only = broker.token(port=broker.admin_port, rule=(rule["name"], rule["primary_key"]))
    assert broker.http(method, path, body)[0] == 401
    status, told = broker.http(method, path, body, token=send_only)
    assert status == 403 and "Manage" in told["error"]
    assert len(broker.admin("GET", RULES)) == 2
