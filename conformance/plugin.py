"""The pytest plugin of the conformance run: stand-ins in place, the left-out table, the count.

With pytest-xdist it is loaded in every process; the counting is the controller's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import azure.servicebus
import azure.servicebus.aio
import pytest

from conformance import stand_ins

TABLE: Final = Path(__file__).with_name("left_out.toml")
MARK: Final = "left out: "
KINDS: Final = ("websocket", "proxy", "aad")
"""What may be left out: the broker speaks neither, and has no directory of identities."""


@dataclass(frozen=True)
class Table:
    """The tests that are not run."""

    left_out: dict[str, str]
    """By us, with a reason that begins with one of KINDS."""
    skipped: dict[str, str]
    """By the SDK's own authors, wherever they run."""

    @classmethod
    def read(cls, path: Path = TABLE) -> Table:
        content = tomllib.loads(path.read_text())
        left_out: dict[str, str] = {}
        for kind, rows in content["left_out"].items():
            if kind not in KINDS:
                raise pytest.UsageError(f"{path.name}: only {', '.join(KINDS)} may be left out")
            left_out |= {name: f"{kind}: {reason}" for name, reason in rows.items()}
        return cls(left_out, content["skipped_by_its_authors"])


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
            reason = reason.removeprefix("Skipped: ")
            is_ours = reason.startswith(MARK)
            (self.left_out if is_ours else self.skipped)[name] = reason.removeprefix(MARK)
        elif report.when == "call":
            self.passed += 1

    def complaints(self, table: Table, files: set[str]) -> Iterator[str]:
        """Why the run is not good, apart from tests that failed."""
        for name in self.skipped.keys() - table.skipped.keys():
            yield f"{name} was skipped ({self.skipped[name]}) and is not in {TABLE.name}"
        for name in table.left_out.keys() - self.left_out.keys():
            if name.partition("::")[0] in files:
                yield f"{name} stands in {TABLE.name} and no test has that name"


def short_name(nodeid: str) -> str:
    """``test_queues.py::test_name[amqp]`` of a node id: without the directories and the class."""
    path, _colons, rest = nodeid.partition("::")
    return f"{path.rpartition('/')[2]}::{rest.rpartition('::')[2]}"


class Conformance:
    """The hooks."""

    def __init__(self, config: pytest.Config) -> None:
        self.table = Table.read()
        self.count = Count()
        self.files: set[str] = set()
        self._is_controller = not hasattr(config, "workerinput")
        self._is_whole = not (config.option.keyword or any("::" in each for each in config.args))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            reason = self.table.left_out.get(short_name(item.nodeid))
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
            write(f"skipped by its authors  {name}: {reason}")
        for sentence in self._complaints():
            write(f"WRONG  {sentence}", red=True)
        count = self.count
        write(
            f"azure-servicebus {azure.servicebus.__version__}, its own tests: "
            f"{count.passed} passed, {len(count.left_out)} left out, "
            f"{len(count.skipped)} skipped by their authors, {len(count.failed)} failed"
        )


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """The SDK's conftest asks for the recording proxy. There is none."""


def without_tls(client: type[Any]) -> None:
    """The tests give a host and a credential; the emulator flag has no place there."""
    original = client.__init__

    def plain(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{"use_tls": False, **options})

    client.__init__ = plain


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """The SDK's conftest is imported next, and wants them."""
    stand_ins.install()


def pytest_configure(config: pytest.Config) -> None:
    without_tls(azure.servicebus.ServiceBusClient)
    without_tls(azure.servicebus.aio.ServiceBusClient)
    config.pluginmanager.register(Conformance(config), "conformance")
