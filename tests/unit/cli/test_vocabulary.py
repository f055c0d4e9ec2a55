"""One word for one thing in all commands; what was written before is still understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from twinbus.cli import app
from twinbus.cli.broker.run import namespace_specs
from twinbus.cli.pair import execution
from twinbus.cli.syphon import run_local
from twinbus.errors import ConfigurationError, TwinbusError
from twinbus.pairing.client.environment import read_namespace
from twinbus.testing.namespaces import NamespaceFixture

NOWHERE = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
)


def invoked(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment)


@pytest.mark.parametrize("rate", ["2000", "2000/s", "2k/s", "120k/m"])
def test_a_rate_is_written_the_same_everywhere(
    rate: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[float] = []

    def preflight(_where: object, options: Any) -> bool:
        seen.append(options.rate_per_s)
        return True

    def syphon(options: Any) -> int:
        seen.append(options.rate_per_s)
        return 0

    monkeypatch.setattr(execution, "run_preflight", preflight)
    monkeypatch.setattr(run_local, "run_syphon", syphon)
    assert invoked("preflight", "--rate", rate).exit_code == 0
    assert invoked("syphon", "--local", "--rate", rate).exit_code == 0
    assert seen == [2000, 2000]

    told = invoked("syphon", "rate", rate, "--state", str(tmp_path), "--output", "json")
    assert json.loads(told.stdout)["set"]["rate_per_s"] == 2000
    made = invoked("cost", "estimate", "--rate", rate, "--output", "json")
    assert json.loads(made.stdout)["plan"]["rate_per_s"] == 2000


@pytest.mark.parametrize(
    "arguments",
    [
        ("preflight", "--rate", "0"),
        ("preflight", "--rate", "2G"),
        ("preflight", "--size", "1GB"),
        ("preflight", "--rate", "1e300"),
        ("preflight", "--size", "101MB"),
        ("preflight", "--message-bytes", "99999999999999999999"),
        ("syphon", "--local", "--rate", "fast"),
        ("syphon", "rate", "0.0001"),
        ("demo", "--rate", "many"),
        ("serve", "--memory", "--entity-rate", "x"),
    ],
)
def test_what_is_no_rate_or_size_is_one_sentence(arguments: tuple[str, ...]) -> None:
    error = invoked(*arguments).exception
    assert isinstance(error, ConfigurationError) and error.hint


@pytest.mark.parametrize("size", [("--size", "2KB"), ("--message-bytes", "2048")])
def test_a_size_has_two_names(size: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def preflight(_where: object, options: Any) -> bool:
        seen.append(options.message_bytes)
        return True

    monkeypatch.setattr(execution, "run_preflight", preflight)
    assert invoked("preflight", *size).exit_code == 0 and seen == [2048]
    made = invoked("cost", "estimate", *size, "--output", "json")
    assert json.loads(made.stdout)["plan"]["size_bytes"] == 2048


def test_an_outage_and_the_backlog_queues_have_the_names_of_both_commands() -> None:
    new = ("--expected-outage", "2h", "--backlog-queue-count", "7")
    old = ("--outage", "2h", "--backlog-queues", "7")
    one, other = (invoked("cost", "estimate", *each, "--output", "json") for each in (new, old))
    assert one.exit_code == 0 and one.stdout == other.stdout


def test_a_subscription_is_named_as_receivers_name_it(
    typed: Any, servicebus: NamespaceFixture
) -> None:
    """M4: in one word or in two."""
    servicebus.topic("news")
    typed("subscription", "create", "news/subscriptions/all", "--max-delivery-count", "3")
    for path in (("news", "all"), ("news/Subscriptions/all",)):
        assert typed.json("subscription", "show", *path)["max_delivery_count"] == 3
        assert [each["name"] for each in typed.json("rule", "list", *path)] == ["$Default"]
        assert typed.json("rule", "show", *path, "$Default")["name"] == "$Default"
    typed("subscription", "delete", "news/subscriptions/all", "--yes")
    assert typed.json("subscription", "list", "news") == []


@pytest.mark.parametrize(
    "path", ["news/all", "news/subscriptions/all", "demo:news/Subscriptions/all"]
)
def test_serve_takes_both_names_of_a_subscription(path: str) -> None:
    (spec,) = namespace_specs(["demo:0"], [], [], [path], None)
    assert [each.description.path for each in spec.subscriptions] == ["news/subscriptions/all"]


def test_twinbus_variables_count_where_the_others_are_not_set() -> None:
    names = ("CONNECTION_STRING", "FULLY_QUALIFIED_NAMESPACE")
    for name in names:
        found = read_namespace({f"TWINBUS_{name}": "x"}, "primary")
        assert found is not None and found.source == f"TWINBUS_{name}"
        found = read_namespace({f"TWINBUS_SECONDARY_{name}": "x"}, "secondary")
        assert found is not None and found.source == f"TWINBUS_SECONDARY_{name}"
    both = {"TWINBUS_CONNECTION_STRING": "x", "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": "y"}
    found = read_namespace(both, "primary")
    assert found is not None and found.source == "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE"


@pytest.mark.parametrize("variable", ["TWINBUS_CONNECTION_STRING", "SERVICEBUS_CONNECTION_STRING"])
def test_all_commands_read_both_variables(variable: str) -> None:
    environment = {variable: NOWHERE, "TWINBUS_ADMIN_URL": "http://localhost:1"}
    for arguments in (("queue", "list"), ("fault", "list"), ("reset", "--yes")):
        error = invoked(*arguments, **environment).exception
        assert isinstance(error, TwinbusError) and not isinstance(error, ConfigurationError)
