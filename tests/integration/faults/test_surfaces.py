"""Faults over HTTP and on the command line: who may, what is said, what is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.integration.faults.switchboard import Switchboard
from tests.support.broker_process import BrokerProcess
from twinbus.broker.faults import KINDS
from twinbus.cli import app
from twinbus.common.durations import seconds
from twinbus.errors import ConfigurationError, TwinbusError

DOCS = Path(__file__).resolve().parents[3] / "docs"


def ask(broker: BrokerProcess, method: str, path: str, body: Any = None, **options: Any) -> Any:
    headers = {"Host": f"localhost:{broker.admin_port}"}
    return broker.http(method, path, body, headers=headers, **options)


@pytest.fixture
def here(broker: BrokerProcess) -> str:
    return f"/namespaces/{broker.namespace}/faults"


def test_faults_are_listed_with_their_time_and_hits(
    broker: BrokerProcess, faults: Switchboard, here: str
) -> None:
    """F1: listable and clearable."""
    added = faults.add("throttle", "orders", id="mine", lasts_s=300, probability=0.5)
    assert (added["id"], added["phase"], added["hit_count"]) == ("mine", "active", 0)
    assert 290 < added["remaining_s"] <= 300
    assert isinstance(added["seed"], int)
    assert broker.admin("GET", f"{here}/mine")["kind"] == "throttle"
    assert faults.clear("mine") == 1
    assert faults.list() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("POST", "", {"kind": "cannot-fly"}, 400, "'cannot-fly'"),
        (
            "POST",
            "",
            {"kind": "throttle", "probability": 7},
            400,
            "probability of fault 'throttle': 7",
        ),
        ("POST", "", b"[1]", 400, "must be a JSON object"),
        ("POST", "", b"{", 400, "not valid JSON"),
        ("GET", "/nobody", None, 404, "'nobody' not found"),
        ("DELETE", "/nobody", None, 404, "'nobody' not found"),
    ],
)
def test_a_mistake_gets_a_sentence(
    method: str,
    path: str,
    body: Any,
    status: int,
    sentence: str,
    broker: BrokerProcess,
    faults: Switchboard,
    here: str,
) -> None:
    token = broker.token(port=broker.admin_port)
    got, answer = ask(broker, method, here + path, body, token=token)
    assert got == status, answer
    assert sentence in answer["error"]
    assert faults.list() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/namespaces/{}/faults"),
        ("POST", "/namespaces/{}/faults"),
        ("DELETE", "/namespaces/{}/faults"),
        ("POST", "/namespaces/{}/stop"),
        ("POST", "/namespaces/{}/start"),
        ("PUT", "/namespaces/{}/subsystems"),
        ("POST", "/clock/advance"),
    ],
)
def test_nobody_switches_anything_without_manage(
    method: str, path: str, broker: BrokerProcess
) -> None:
    """M6: Manage on the namespace is needed."""
    rule = broker.admin(
        "PUT",
        f"/namespaces/{broker.namespace}/rules/sender-{method}-{abs(hash(path))}",
        {"claims": ["Send"]},
    )
    weak = broker.token(port=broker.admin_port, rule=(rule["name"], rule["primary_key"]))
    path = path.format(broker.namespace)
    assert ask(broker, method, path, {})[0] == 401
    assert ask(broker, method, path, {}, token=weak)[0] in (401, 403)
    assert broker.health()["status"] == "ok"


def test_faults_are_reached_whatever_is_switched_on(
    broker: BrokerProcess, faults: Switchboard
) -> None:
    """F1: whoever switched a fault on can switch it off."""
    token = broker.token(port=broker.admin_port)
    queues = f"/namespaces/{broker.namespace}/queues"
    faults.add("cannot-manage")
    faults.add("cannot-contact", how="gateway-error")
    assert ask(broker, "GET", queues, token=token)[0] == 502
    faults.clear(faults.list()[1]["id"])
    assert ask(broker, "GET", queues, token=token)[0] == 500
    assert broker.health()["status"] == "ok"
    assert faults.clear() == 1
    assert ask(broker, "GET", queues, token=token)[0] == 200


def test_one_entity_cannot_be_managed_and_the_others_can(
    broker: BrokerProcess, faults: Switchboard, queue: str
) -> None:
    """F1: per entity."""
    token = broker.token(port=broker.admin_port)
    path = f"/namespaces/{broker.namespace}/queues"
    with faults.on("cannot-manage", queue):
        assert ask(broker, "GET", f"{path}/{queue}", token=token)[0] == 500
        assert ask(broker, "GET", f"{path}/bystander", token=token)[0] == 200


# -- the command line ---------------------------------------------------------------------


def run(broker: BrokerProcess, *arguments: str) -> Result:
    environment = {
        "TWINBUS_ADMIN_URL": f"http://localhost:{broker.admin_port}",
        "TWINBUS_CONNECTION_STRING": broker.connection_string,
    }
    return CliRunner().invoke(app, ["fault", *arguments], env=environment)


def test_the_command_line_adds_lists_and_clears(broker: BrokerProcess, faults: Switchboard) -> None:
    """F1: `twinbus fault …`."""
    added = run(
        broker,
        *("add", "cannot-send", "--entity", "orders", "--for", "5m", "--id", "mine"),
        *("--set", "probability=0.5", "--set", "condition=com.microsoft:timeout"),
        *("--output", "json"),
    )
    assert added.exit_code == 0, added.output
    (shown,) = json.loads(added.stdout)
    assert (shown["lasts_s"], shown["probability"]) == (300, 0.5)
    assert shown["condition"] == "com.microsoft:timeout"

    table = run(broker, "list")
    assert "mine" in table.stdout and "cannot-send" in table.stdout
    assert json.loads(run(broker, "list", "--output", "json").stdout)[0]["id"] == "mine"
    assert run(broker, "clear", "mine").stdout == "1 fault cleared\n"
    assert faults.list() == []
    assert run(broker, "list").stdout == "No fault is switched on\n"


def test_a_dry_run_switches_nothing_on_or_off(broker: BrokerProcess, faults: Switchboard) -> None:
    would = run(broker, "add", "cannot-send", "--entity", "orders", "--dry-run")
    assert would.stdout == "Fault cannot-send would be switched on for orders\n"
    assert faults.list() == []
    run(broker, "add", "cannot-send", "--entity", "orders", "--id", "mine")
    assert run(broker, "clear", "--dry-run").stdout == "1 fault would be cleared\n"
    for more in ([], ["--dry-run"]):
        refused = str(run(broker, "clear", "other", *more).exception)
        assert "'other'" in refused and "'mine'" in refused
    (line,) = run(broker, "list", "--output", "jsonl").stdout.splitlines()
    assert json.loads(line)["id"] == "mine"
    assert json.loads(run(broker, "clear", "--output", "json").stdout) == {"cleared": 1}
    for verb in ("stop", "start"):
        told = json.loads(run(broker, verb, "--dry-run", "--output", "jsonl").stdout)
        assert told == {f"would_{verb}": broker.namespace}


def test_what_happens_in_a_moment_is_shown_as_over(
    broker: BrokerProcess, faults: Switchboard
) -> None:
    """F1: there is nothing to clear, and the answer says what was done."""
    added = run(broker, "add", "lock-loss", "--entity", "bystander", "--output", "json")
    (shown,) = json.loads(added.stdout)
    assert (shown["kind"], shown["phase"], shown["remaining_s"]) == ("lock-loss", "over", 0)
    assert faults.list() == []


def test_the_command_line_stops_and_starts_a_namespace(broker: BrokerProcess) -> None:
    """M9: `twinbus fault stop` and `start`."""
    assert run(broker, "stop").stdout == f"Namespace {broker.namespace!r} stopped\n"
    assert run(broker, "start").stdout == f"Namespace {broker.namespace!r} started\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "cannot-fly"], "'cannot-fly'. Use one of: cannot-send, cannot-"),
        (["add", "throttle", "--for", "soon"], "'soon' is not a time"),
        (["add", "throttle", "--set", "probability"], "--set: 'probability'"),
        (["add", "throttle", "--output", "xml"], "--output: 'xml'"),
        (
            ["add", "throttle", "--set", "rate=1"],
            "option 'rate'. Use one of: id, lasts_s, probability",
        ),
        (["clear", "nobody"], "'nobody' not found. No fault exists"),
    ],
)
def test_a_wrong_command_is_answered_with_a_sentence(
    arguments: list[str], sentence: str, broker: BrokerProcess
) -> None:
    result = run(broker, *arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, TwinbusError)
    assert sentence in str(result.exception)
    assert "SharedAccessKey" not in str(result.exception)


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30), ("30s", 30), ("250ms", 0.25), ("1.5m", 90), ("1h", 3600)]
)
def test_times_are_read(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)
    with pytest.raises(ConfigurationError):
        seconds(f"-{text}")


def test_every_kind_is_shown_and_documented() -> None:
    """F1: the list that the program shows is the one that the page explains."""
    shown = json.loads(CliRunner().invoke(app, ["fault", "kinds", "--output", "json"]).stdout)
    assert list(shown) == list(KINDS)
    page = (DOCS / "BROKER.md").read_text(encoding="utf-8")
    assert set(KINDS) <= set(re.findall(r"^\| `([a-z-]+)` \|", page, re.M))


def test_no_option_of_a_kind_is_cut_off_in_a_narrow_terminal() -> None:
    """F1: every word of the table can be typed after ``--how`` or ``--set``."""
    shown = CliRunner().invoke(app, ["fault", "kinds"], env={"COLUMNS": "80"}).stdout
    assert "cannot-contact" in shown and "…" not in shown
