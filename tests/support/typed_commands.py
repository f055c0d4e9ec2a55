"""The commands, typed against a clean namespace of a running broker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.errors import TwinbusError
from twinbus.testing.namespaces import NamespaceFixture, NamespacePairFixture


class Typed:
    """Runs commands as they are typed."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        """What the command wrote to standard output; an error of ours is raised."""
        result = CliRunner().invoke(
            app, arguments, input=stdin, env={**self.environment, "COLUMNS": "200"}
        )
        if isinstance(result.exception, TwinbusError):
            raise result.exception
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        return result.stdout

    def json(self, *arguments: str, stdin: str | bytes | None = None) -> Any:
        return json.loads(self(*arguments, "--output", "json", stdin=stdin))

    def lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--output", "jsonl").splitlines()]

    def refused(self, *arguments: str, stdin: str | bytes | None = None) -> str:
        """The sentence and the hint of a command that must fail."""
        with pytest.raises(TwinbusError) as caught:
            self(*arguments, stdin=stdin)
        # What the broker says has its hint inside.
        assert caught.value.hint or ". " in str(caught.value), "an error offers a way out"
        return str(caught.value)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SERVICEBUS_", "TWINBUS_")):
            monkeypatch.delenv(name)


@pytest.fixture
def typed(servicebus: NamespaceFixture) -> Typed:
    return Typed({"SERVICEBUS_CONNECTION_STRING": servicebus.connection_string})


@pytest.fixture
def typed_pair(servicebus_pair: NamespacePairFixture) -> Typed:
    return Typed(
        {
            "SERVICEBUS_CONNECTION_STRING": servicebus_pair.primary.connection_string,
            "SERVICEBUS_SECONDARY_CONNECTION_STRING": servicebus_pair.secondary.connection_string,
        }
    )


@pytest.fixture
def typed_with() -> Callable[[str], Typed]:
    """Commands with another connection string."""
    return lambda text: Typed({"SERVICEBUS_CONNECTION_STRING": text})


@pytest.fixture
def typed_nowhere() -> Typed:
    """Commands in an environment that names no namespace."""
    return Typed({})
