"""``twinbus pair failover|restore|hold``: from a shell to the applications of a pair."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from twinbus.aio import (
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.errors import ConfigurationError
from twinbus.failover.state_machine import Health
from twinbus.pairing import operator_commands
from twinbus.testing.namespaces import NamespacePairFixture


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_commands, "POLL_INTERVAL_S", 0.02)


async def paired(pair: NamespacePairFixture, control: Path) -> MessagingFactory:
    secondary = pair.secondary.connection_string
    factory = MessagingFactory.from_connection_string(pair.primary.connection_string)
    await factory.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            NamespaceManager.from_connection_string(secondary),
            MessagingFactory.from_connection_string(secondary),
            backlog_queue_count=1,
            control=control,
        )
    )
    return factory


async def until(factory: MessagingFactory, path: str, state: Health) -> None:
    async with asyncio.timeout(10):
        while factory.health(path).state is not state:
            await asyncio.sleep(0.01)


async def test_every_application_of_a_pair_does_what_is_ordered(
    typed_nowhere: Any, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """P16: across processes, by a file: diverted, restored, held."""
    control = tmp_path / "control.json"

    def order(*arguments: str) -> Any:
        return asyncio.to_thread(typed_nowhere, "pair", *arguments, "--control", str(control))

    one, other = [await paired(servicebus_pair, control) for _ in range(2)]
    try:
        said = await order("failover", "Orders")
        assert "Failover of 'Orders' written to" in said
        for factory in (one, other):
            await until(factory, "orders", Health.DIVERTED)
            assert factory.health("invoices").state is Health.HEALTHY
        await order("hold", "orders")
        await until(one, "orders", Health.HELD_ON_BACKLOG)
        await order("restore", "orders")
        await until(one, "orders", Health.HEALTHY)
        await order("failover", "orders", "--hold")
        await until(one, "orders", Health.HELD_ON_BACKLOG)

        # One that starts now finds it held, before its first send
        late = await paired(servicebus_pair, control)
        assert late.health("orders").state is Health.HELD_ON_BACKLOG
        await order("restore", "*")
        for factory in (one, other, late):
            await until(factory, "orders", Health.HEALTHY)
        await late.close()
    finally:
        await one.close()
        await other.close()


async def test_an_application_that_starts_later_does_not_repeat_a_moment(
    typed_nowhere: Any, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """P16: a failover that is not held was about its moment."""
    control = tmp_path / "control.json"
    operator_commands.write_command(control, "orders", "failover", is_held=False)
    factory = await paired(servicebus_pair, control)
    await asyncio.sleep(0.1)
    assert factory.health("orders").state is Health.HEALTHY
    # The same order given again is another one
    operator_commands.write_command(control, "orders", "failover", is_held=False)
    await until(factory, "orders", Health.DIVERTED)
    await factory.close()


async def test_a_file_that_cannot_be_read_changes_nothing(
    servicebus_pair: NamespacePairFixture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P16: neither a broken one nor none; it is told, and orders work again afterwards."""
    control = tmp_path / "control.json"
    operator_commands.write_command(control, "orders", "failover", is_held=True)
    factory = await paired(servicebus_pair, control)
    control.write_text("{nonsense")
    async with asyncio.timeout(10):
        while str(control) not in caplog.text:
            await asyncio.sleep(0.01)
    control.unlink()
    await asyncio.sleep(0.1)
    assert factory.health("orders").state is Health.HELD_ON_BACKLOG
    operator_commands.write_command(control, "orders", "restore", is_held=False)
    await until(factory, "orders", Health.HEALTHY)
    await factory.close()


def test_what_stands_in_the_file(typed_nowhere: Any, tmp_path: Path) -> None:
    """P16: the last order of each path; one for all replaces them."""
    control = tmp_path / "control.json"
    options = ("--control", str(control))
    assert "would be written to" in typed_nowhere("pair", "failover", "a", "--dry-run", *options)
    assert not control.exists()
    typed_nowhere("pair", "failover", "A", *options)
    typed_nowhere("pair", "hold", "b", *options)
    told = {path: each["order"] for path, each in json.loads(control.read_text()).items()}
    assert told == {"a": "failover", "b": "hold"}
    assert control.stat().st_mode & 0o022 == 0, "who may write it may divert sends"
    assert typed_nowhere.json("pair", "restore", "*", *options)["ordered"]["path"] == "*"
    assert list(json.loads(control.read_text())) == ["*"]
    assert [each.name for each in tmp_path.iterdir()] == ["control.json"]


def test_an_application_of_another_user_can_read_the_file(
    typed_nowhere: Any, tmp_path: Path
) -> None:
    """M13: whatever the operator's umask is; it holds no secret. Nobody else may write it."""
    control = tmp_path / "control.json"
    before = os.umask(0o077)
    try:
        typed_nowhere("pair", "hold", "a", "--control", str(control))
    finally:
        os.umask(before)
    assert control.stat().st_mode & 0o777 == 0o644


def test_a_mode_that_the_operator_has_chosen_is_kept(typed_nowhere: Any, tmp_path: Path) -> None:
    """M13: but for everybody's writing, with which the file is not read at all."""
    control = tmp_path / "control.json"
    options = ("--control", str(control))
    control.touch()
    typed_nowhere("pair", "hold", "a", *options)
    for mode in (0o600, 0o660, 0o664):
        control.chmod(mode)
        typed_nowhere("pair", "hold", "a", *options)
        assert control.stat().st_mode & 0o777 == mode
    control.chmod(0o666)
    assert "chmod o-w" in typed_nowhere.refused("pair", "hold", "a", *options)
    with pytest.raises(ConfigurationError, match="chmod o-w"):
        operator_commands.read_commands(control)


def test_a_group_can_be_let_in(typed_nowhere: Any, tmp_path: Path) -> None:
    """M13: by name or number; then nobody else may read it, also after the next order."""
    control = tmp_path / "control.json"
    options = ("--control", str(control))
    groups = os.getgroups() or [os.getegid()]
    typed_nowhere("pair", "hold", "a", *options, "--group", str(groups[-1]))
    typed_nowhere("pair", "restore", "a", *options)
    assert control.stat().st_mode & 0o777 == 0o640
    assert control.stat().st_gid == groups[-1]
    refused = typed_nowhere.refused("pair", "hold", "a", *options, "--group", "no-such-group")
    assert "not found on this machine" in refused


@pytest.mark.parametrize(
    ("content", "path", "words"),
    [
        ("", "a//b", "double slash"),
        ("[]", "a", "`twinbus pair`"),
        ('{"a": {"order": "dance", "is_held": false, "at": ""}}', "a", "command for 'a'"),
        ('{"$x": {"order": "hold", "is_held": true, "at": ""}}', "a", "command for '$x'"),
    ],
)
def test_what_cannot_be_ordered_is_one_sentence_and_a_hint(
    typed_nowhere: Any, tmp_path: Path, content: str, path: str, words: str
) -> None:
    control = tmp_path / "control.json"
    if content:
        control.write_text(content)
    assert words in typed_nowhere.refused("pair", "hold", path, "--control", str(control))
    missing = str(tmp_path / "no" / "control.json")
    assert "cannot be written" in typed_nowhere.refused("pair", "hold", "a", "--control", missing)
