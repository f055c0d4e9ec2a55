"""The pytest plugin of the conformance run: stand-ins in place, the left-out table, the count.

With pytest-xdist it is loaded in every process; the counting is the controller's.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import azure.servicebus
import azure.servicebus.aio.management
import azure.servicebus.management
import pytest
from azure.servicebus._pyamqp.client import AMQPClient
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from verification.conformance import stand_ins
from verification.conformance.service import running_broker

TABLE: Final = Path(__file__).with_name("left_out.toml")
MARK: Final = "left out: "
KINDS: Final = ("websocket", "proxy", "aad")
"""What may be left out: the broker speaks neither, and has no directory of identities."""
AZURE: Final = "azure"
"""Something of Azure itself that a broker on your own machine does not imitate."""
WHOLE: Final = ("test_queues", "test_sessions")
"""These suites have nothing of that kind, sync and aio."""


@dataclass(frozen=True)
class Table:
    """The tests that are not run."""

    left_out: dict[str, str]
    """By us, with a reason that begins with one of KINDS."""
    skipped: dict[str, str]
    """By the SDK's own authors, wherever they run."""
    outdated: dict[str, str]
    """This version of the SDK cannot pass them, whatever the service does."""

    @classmethod
    def read(cls, path: Path = TABLE) -> Table:
        content = tomllib.loads(path.read_text())
        left_out: dict[str, str] = {}
        for kind, rows in content["left_out"].items():
            for name in rows:
                if kind not in KINDS and (kind != AZURE or name.startswith(WHOLE)):
                    raise pytest.UsageError(f"{path.name}: {name} may not be left out as {kind!r}")
            left_out |= {name: f"{kind}: {reason}" for name, reason in rows.items()}
        return cls(left_out, content["skipped_by_their_authors"], content["outdated"])

    def reason_of(self, name: str) -> str | None:
        """Why a test is not run; None when it is."""
        if name in self.outdated:
            return f"outdated: {self.outdated[name]}"
        return self.left_out.get(name)


@dataclass
class Count:
    """What became of the tests."""

    passed: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def take(self, report: pytest.TestReport) -> None:
        name = short_name(report.nodeid)
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            reason = getattr(report, "wasxfail", reason).removeprefix("Skipped: ")
            is_ours = reason.startswith(MARK)
            (self.left_out if is_ours else self.skipped)[name] = reason.removeprefix(MARK)
        elif report.when == "call":
            self.passed += 1

    def complaints(self, table: Table, files: set[str]) -> Iterator[str]:
        """Why the run is not good, apart from tests that failed."""
        for name in self.skipped.keys() - table.skipped.keys():
            yield f"{name} was skipped ({self.skipped[name]}) and is not in {TABLE.name}"
        for name in (table.left_out | table.outdated).keys() - self.left_out.keys():
            if name.partition("::")[0] in files:
                yield f"{name} stands in {TABLE.name} and no test has that name"


def short_name(nodeid: str) -> str:
    """``test_queues.py::test_name[amqp]`` of a node id: without the directories and the class."""
    path, _colons, rest = nodeid.partition("::")
    return f"{path.rpartition('/')[2]}::{rest.rpartition('::')[2]}"


# What the long tests sleep; the others are below a minute.
SECONDS: Final = {
    "test_topic_by_servicebus_client_send_large_messages_w_sleep": 510,
    "test_queue_receive_keep_conn_alive": 330,
    "test_queue_receiver_sender_resume_after_link_timeout": 310,
    "test_session_cancel_scheduled_messages": 265,
    "test_github_issue_6178": 185,
    "test_session_schedule_multiple_messages": 130,
    "test_session_schedule_message": 120,
    "test_queue_cancel_scheduled_messages": 120,
    "test_queue_schedule_multiple_messages": 120,
    "test_queue_schedule_message": 120,
    "test_queue_receive_handler_with_autolockrenew_many_msgs": 115,
    "test_queue_by_queue_client_conn_str_receive_handler_release_messages": 90,
    "test_queue_by_queue_client_conn_str_receive_handler_with_autolockrenew": 80,
}


def seconds_of(item: pytest.Item) -> int:
    """How long a test takes, roughly; its aio twin takes as long."""
    name = item.name.partition("[")[0].replace("_async", "")
    return SECONDS.get(name, 0)


def in_good_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The longest first, so that nobody waits in the end for one that began last.

    Each worker is given two tests to begin with: a long one goes with a short one.
    """
    ordered = sorted(items, key=lambda item: -seconds_of(item))
    middle = (len(ordered) + 1) // 2
    pairs = zip_longest(ordered[:middle], reversed(ordered[middle:]))
    return [item for pair in pairs for item in pair if item is not None]


class Conformance:
    """The hooks."""

    def __init__(self, config: pytest.Config) -> None:
        self.table = Table.read()
        self.count = Count()
        self.files: set[str] = set()
        self._is_controller = not hasattr(config, "workerinput")
        self._is_whole = not (config.option.keyword or any("::" in each for each in config.args))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = in_good_order(items)
        for item in items:
            reason = self.table.reason_of(short_name(item.nodeid))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=MARK + reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_controller:
            self.files.add(short_name(report.nodeid).partition("::")[0])
            self.count.take(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_controller and self._complaints():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _complaints(self) -> list[str]:
        """About a run of whole files; who names single tests knows what is missing."""
        return list(self.count.complaints(self.table, self.files)) if self._is_whole else []

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("conformance")
        for name, reason in sorted(self.count.left_out.items()):
            write(f"left out  {name}: {reason}")
        for name, reason in sorted(self.count.skipped.items()):
            write(f"skipped by their authors  {name}: {reason}")
        for sentence in self._complaints():
            write(f"WRONG  {sentence}", red=True)
        count = self.count
        outdated = len(count.left_out.keys() & self.table.outdated.keys())
        write(
            f"azure-servicebus {azure.servicebus.__version__}, its own tests: "
            f"{count.passed} passed, {len(count.left_out) - outdated} left out, "
            f"{outdated} outdated, {len(count.skipped)} skipped by their authors, "
            f"{len(count.failed)} failed"
        )


def trusting(administration: type[Any]) -> None:
    """The administration client speaks TLS only; here it trusts the broker's own authority."""
    original = administration.__init__

    def prepared(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{"connection_verify": running_broker().ca_path, **options})

    administration.__init__ = prepared


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Some tests replace methods of the SDK's classes and leave it to the next test to suffer."""
    kept = {kind: dict(vars(kind)) for kind in (PyamqpTransport, PyamqpTransportAsync, AMQPClient)}
    yield
    for kind, before in kept.items():
        now = dict(vars(kind))
        for name in now.keys() - before.keys():
            delattr(kind, name)
        for name, value in before.items():
            if now.get(name) is not value:
                setattr(kind, name, value)


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """The SDK's conftest asks for the recording proxy. There is none."""


def without_tls(client: type[Any]) -> None:
    """The tests know no emulator flag: they give a host and a credential, or a string of theirs."""
    original = client.__init__

    def plain(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "use_tls": False})

    client.__init__ = plain


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """The SDK's conftest is imported next, and wants them."""
    stand_ins.install()


def patient_with_stubs(transport: type[Any], name: str, stubbed: str) -> None:
    """Let a test put a function with fewer arguments in the place of ``stubbed``.

    test_queue_operation_negative does, with the arguments of an earlier version of the SDK.
    """
    original = getattr(transport, name)

    def settle(handler: Any, *arguments: Any, **options: Any) -> Any:
        wanted = inspect.signature(getattr(handler, stubbed)).parameters
        if "await_outcome" in wanted or inspect.Parameter.VAR_KEYWORD in {
            each.kind for each in wanted.values()
        }:
            return original(handler, *arguments, **options)
        return original(FewerArguments(handler, stubbed), *arguments, **options)

    setattr(transport, name, staticmethod(settle))


class FewerArguments:
    """A receiving client one of whose methods is a test's own."""

    def __init__(self, handler: Any, stubbed: str) -> None:
        stub = getattr(handler, stubbed)
        setattr(self, stubbed, lambda *arguments, **_options: stub(*arguments))


def pytest_configure(config: pytest.Config) -> None:
    without_tls(azure.servicebus.ServiceBusClient)
    without_tls(azure.servicebus.aio.ServiceBusClient)
    trusting(azure.servicebus.management.ServiceBusAdministrationClient)
    trusting(azure.servicebus.aio.management.ServiceBusAdministrationClient)
    settle = "settle_message_via_receiver_link"
    patient_with_stubs(PyamqpTransport, settle, "settle_messages")
    patient_with_stubs(PyamqpTransportAsync, f"{settle}_async", "settle_messages_async")
    config.pluginmanager.register(Conformance(config), "conformance")
