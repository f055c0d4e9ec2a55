"""``twinbus pair plan|apply|status`` and ``twinbus backlog list|show|cleanup``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from twinbus.cli import app
from twinbus.cli.pair.commands import EXIT_ATTENTION
from twinbus.common.connection_string import parse_connection_string
from twinbus.spark.syphon.state_directory import StateDir
from twinbus.testing.namespaces import NamespacePairFixture

QUEUE = "primary/x-servicebus-transfer/{}"


def answered(typed: Any, *arguments: str) -> tuple[int, Any]:
    """The exit code, and the JSON of the answer."""
    result = CliRunner().invoke(app, [*arguments, "--output", "json"], env=typed.environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def divert(typed: Any, index: int, body: str = "x") -> None:
    """Put a message for the queue "orders" into a backlog queue."""
    typed("send", QUEUE.format(index), body, "--secondary", "--property", "x-ms-path=orders")


def told(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {each["queue"].rpartition("/")[2]: each["what"] for each in rows}


def test_a_plan_says_what_apply_does(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """P4: missing queues are made with the properties of backlog queues, others are left alone."""
    secondary = servicebus_pair.secondary
    secondary.queue(QUEUE.format(1), max_delivery_count=5)
    options = ("--backlog-queue-count", "3")
    plan = typed_pair.json("pair", "plan", *options)
    assert told(plan) == {"0": "would be created", "1": "is there", "2": "would be created"}
    assert "max_delivery_count is 5, not 2147483647" in plan[1]["why"]
    assert typed_pair.json("pair", "apply", *options, "--dry-run") == plan
    assert [each["index"] for each in typed_pair.json("backlog", "list")] == [1]

    made = typed_pair.json("pair", "apply", *options)
    assert told(made) == {"0": "created", "2": "created", "1": "is there"}
    shown = typed_pair.json("queue", "show", QUEUE.format(0), "--secondary")
    assert shown["max_delivery_count"] == 2_147_483_647 and shown["max_size_in_megabytes"] == 5120
    assert (
        typed_pair.json("queue", "show", QUEUE.format(1), "--secondary")["max_delivery_count"] == 5
    )
    assert set(told(typed_pair.json("pair", "plan", *options)).values()) == {"is there"}
    assert "is there" in typed_pair("pair", "plan", *options)


def test_a_queue_that_would_lose_messages_is_told(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """P4: it is refused, the others are used."""
    servicebus_pair.secondary.queue(QUEUE.format(0), requires_session=True)
    code, plan = answered(typed_pair, "pair", "plan", "--backlog-queue-count", "2")
    assert code == EXIT_ATTENTION and "sessions" in plan[0]["why"]
    code, made = answered(typed_pair, "pair", "apply", "--backlog-queue-count", "2")
    assert code == EXIT_ATTENTION and told(made) == {"1": "created", "0": "cannot be used"}


def test_a_namespace_is_not_its_own_secondary(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """P3: it would be away together with itself."""
    own = ("--secondary", "env:SERVICEBUS_CONNECTION_STRING")
    for verb in ("plan", "apply", "status"):
        assert "another namespace" in typed_pair.refused("pair", verb, *own)
    assert typed_pair.json("queue", "list") == []


def test_a_secondary_that_refuses_us_is_told_as_such(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """It answers; and how much waits there is not known."""
    typed_pair("pair", "apply", "--backlog-queue-count", "1")
    right = servicebus_pair.secondary.connection_string
    key = str(parse_connection_string(right).shared_access_key)
    typed_pair.environment["WRONG"] = right.replace(key, "d3JvbmcgLi4u")
    status = ("pair", "status", "--secondary", "env:WRONG", "--backlog-queue-count", "1")
    code, found = answered(typed_pair, *status)
    assert code == EXIT_ATTENTION and found["secondary"]["answers"]
    assert found["attention"][0].startswith("The secondary refused ")
    shown = CliRunner().invoke(app, list(status), env=typed_pair.environment).stdout
    assert "backlog is unknown" in shown


def test_the_status_of_a_pair(typed_pair: Any, servicebus_pair: NamespacePairFixture) -> None:
    """Y7: a backlog that ages with nobody receiving shows."""
    servicebus_pair.primary.queue("orders")
    status = ("pair", "status", "--watch", "0.2s")
    code, found = answered(typed_pair, *status)
    assert code == EXIT_ATTENTION and "pair apply" in found["attention"][0]

    typed_pair("pair", "apply", "--backlog-queue-count", "2")
    code, found = answered(typed_pair, *status)
    assert code == 0 and found["attention"] == []
    assert found["primary"]["answers"] and found["secondary"]["answers"]
    assert [each["messages"] for each in found["backlog"]] == [0, 0]

    divert(typed_pair, 1)
    code, found = answered(typed_pair, *status)
    assert code == EXIT_ATTENTION and found["backlog"][1]["messages"] == 1
    assert found["backlog"][1]["oldest_age_s"] >= 0
    (sentence,) = found["attention"]
    assert "1 message in 1 backlog queue, and no syphon" in sentence and "syphon" in sentence

    with servicebus_pair.outage():
        # The backlog queues name the primary that they belong to.
        code, found = answered(typed_pair, *status)
        assert code == EXIT_ATTENTION and not found["primary"]["answers"]
        # That nobody brings messages home to a primary that is away is as it should be
        assert len(found["attention"]) == 1
        assert "The primary is unreachable" in found["attention"][0]
        assert [each["messages"] for each in typed_pair.json("backlog", "list")] == [0, 1]
    result = CliRunner().invoke(app, list(status), env=typed_pair.environment)
    assert "Attention: " in result.stdout and result.exit_code == EXIT_ATTENTION


def test_a_primary_whose_queues_do_not_name_it_must_be_named(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """P21: a name that might be that of another pair is not guessed; the error has it."""
    servicebus_pair.secondary.queue("other/x-servicebus-transfer/0")
    with servicebus_pair.outage():
        for command in (("pair", "status"), ("backlog", "list")):
            assert "--primary-name other" in typed_pair.refused(*command)


def test_the_status_knows_what_the_journals_say(
    typed_pair: Any, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """P16: which entities are diverted, since when and why."""
    typed_pair("pair", "apply", "--backlog-queue-count", "1")
    lines = [
        {"event": "diverted", "at": "2026-03-01T12:00:00+00:00", "path": "bills", "reason": "x"},
        {
            "event": "diverted",
            "at": "2026-03-01T12:01:00+00:00",
            "path": "orders",
            "reason": "lost",
        },
        {"event": "restored", "at": "2026-03-01T12:02:00+00:00", "path": "bills"},
        {"event": "ping-failed", "at": "2026-03-01T12:03:00+00:00", "path": "orders"},
    ]
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(json.dumps(each) + "\n" for each in lines) + "torn")
    status = ("pair", "status", "--watch", "0s", "--journal", str(journal))
    code, found = answered(typed_pair, *status)
    assert code == EXIT_ATTENTION
    (diverted,) = found["diverted"]
    assert diverted["path"] == "orders" and diverted["reason"] == "lost"
    assert diverted["since"] == "2026-03-01T12:01:00+00:00"
    (sentence,) = found["attention"]
    assert sentence.startswith("'orders' has been diverted since 2026-03-01 12:01:00 UTC")
    assert sentence.endswith("last event at 2026-03-01 12:03:00 UTC: lost")

    shown = CliRunner().invoke(app, list(status), env=typed_pair.environment).stdout
    assert "orders" in shown and "lost" in shown
    missing = str(tmp_path / "none")
    assert "--journal" in typed_pair.refused("pair", "status", "--journal", missing)


def test_a_paused_syphon_is_resumed_and_no_other_started(
    typed_pair: Any, servicebus_pair: NamespacePairFixture, tmp_path: Path
) -> None:
    """Y7: nobody receives because somebody has said so."""
    servicebus_pair.primary.queue("orders")
    typed_pair("pair", "apply", "--backlog-queue-count", "1")
    divert(typed_pair, 0)
    state = StateDir(tmp_path / "state")
    status = ("pair", "status", "--watch", "0.1s", "--state", str(state.path))
    state.take()
    typed_pair("syphon", "pause", "--state", str(state.path))
    code, found = answered(typed_pair, *status)
    (sentence,) = found["attention"]
    assert code == EXIT_ATTENTION and found["syphon"]["is_paused"]
    assert "the syphon is paused" in sentence
    assert f"twinbus syphon resume --state {state.path}" in sentence

    # The next one to start would be paused, too.
    state.release()
    _code, found = answered(typed_pair, *status)
    (sentence,) = found["attention"]
    assert "syphon resume" in sentence and "run `twinbus syphon`" in sentence

    typed_pair("syphon", "resume", "--state", str(state.path))
    _code, found = answered(typed_pair, *status)
    (sentence,) = found["attention"]
    assert "resume" not in sentence and "run `twinbus syphon`" in sentence


def test_the_status_shows_queues_beyond_the_count_that_hold_messages(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """Y9: those of another pair with more queues; its empty ones are left out."""
    servicebus_pair.primary.queue("orders")
    typed_pair("pair", "apply", "--backlog-queue-count", "5")
    divert(typed_pair, 3)
    status = ("pair", "status", "--watch", "0s", "--backlog-queue-count", "2")
    _code, found = answered(typed_pair, *status)
    assert [each["queue"][-1] for each in found["backlog"]] == ["0", "1", "3"]
    assert [each["messages"] for each in found["backlog"]] == [0, 0, 1]


def test_the_backlog_is_shown_with_its_destinations(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """P12: and nothing is taken."""
    typed_pair("pair", "apply", "--backlog-queue-count", "1")
    servicebus_pair.secondary.queue("other/x-servicebus-transfer/0")
    divert(typed_pair, 0, "hello")
    assert [each["messages"] for each in typed_pair.json("backlog", "list")] == [1]
    owners = {each["primary"] for each in typed_pair.json("backlog", "list", "--all")}
    assert owners == {"primary", "other"}
    for _ in range(2):
        (seen,) = typed_pair.json("backlog", "show", "0")
        assert seen["destination"] == "orders" and seen["body"] == "hello"
    assert "orders" in typed_pair("backlog", "show", "0")
    assert typed_pair.json("backlog", "show", "0", "--dead-letters") == []


def test_a_cleanup_deletes_extra_queues_and_no_message(
    typed_pair: Any, servicebus_pair: NamespacePairFixture
) -> None:
    """P4: only on request, only beyond the count, never a queue with messages."""
    orders = servicebus_pair.primary.queue("orders")
    typed_pair("pair", "apply", "--backlog-queue-count", "4")
    divert(typed_pair, 3)
    cleanup = ("backlog", "cleanup", "--backlog-queue-count", "2")
    assert "--yes" in typed_pair.refused(*cleanup)
    code, rows = answered(typed_pair, *cleanup, "--dry-run")
    assert code == EXIT_ATTENTION and told(rows) == {"2": "would be deleted", "3": "left"}
    code, rows = answered(typed_pair, *cleanup, "--yes")
    assert code == EXIT_ATTENTION and told(rows) == {"2": "deleted", "3": "left"}
    assert "1 message: " in rows[1]["why"]
    listed = typed_pair.json("backlog", "list")
    assert [each["index"] for each in listed] == [0, 1, 3]

    code, rows = answered(typed_pair, *cleanup, "--yes", "--drain")
    assert code == 0 and told(rows) == {"3": "deleted"}
    assert orders.active_message_count == 1
    assert answered(typed_pair, *cleanup, "--yes") == (0, [])


def test_a_message_that_comes_while_a_queue_is_cleaned_up_keeps_it(
    typed_pair: Any, servicebus_pair: NamespacePairFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: sends are off while it is looked at for the last time, and on again when it stays."""
    from twinbus.cli.pair import backlog_cleanup

    typed_pair("pair", "apply", "--backlog-queue-count", "2")
    looks: list[str] = []

    async def held(_secondary: object, path: str) -> str:
        looks.append(servicebus_pair.secondary.machine(path).description.status.value)
        return "a message came" if len(looks) == 2 else ""

    monkeypatch.setattr(backlog_cleanup, "_describe_contents", held)
    code, rows = answered(typed_pair, "backlog", "cleanup", "--backlog-queue-count", "1", "--yes")
    assert code == EXIT_ATTENTION and told(rows) == {"1": "left"}
    assert looks == ["Active", "SendDisabled"]
    divert(typed_pair, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pair", "plan", "--primary-name", "a/b"], "'a/b'"),
        (["pair", "plan", "--secondary", "env:NOTHING"], "'NOTHING'"),
        (["pair", "status", "--watch", "long"], "is not a time"),
        (["pair", "apply", "--output", "xml"], "--output: 'xml'"),
        (["backlog", "show", "7"], "x-servicebus-transfer/7"),
        (["backlog", "cleanup", "--backlog-queue-count", "1", "--drain", "--dry-run"], "--drain"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_hint(
    typed_pair: Any, arguments: list[str], words: str
) -> None:
    assert words in typed_pair.refused(*arguments)
