"""Tables for people: they fit the terminal, and no word in them is broken."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.cli.shared.output import show_table

QUEUE = "primary/x-servicebus-transfer/0"
COLUMNS = ("queue", "messages", "what to do")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def show(*arguments: Any, width: int = 80, **options: Any) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        show_table(*arguments, **options)
        return capsys.readouterr().out.splitlines()

    return show


def test_long_sentences_wrap_and_names_stay_whole(shown: Any) -> None:
    long = "Give the access rule of the secondary the claim Listen on each of these queues"
    lines = shown(COLUMNS, [(QUEUE, "1,234", long), ("orders", "5", "")])
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert QUEUE in text and "1,234" in text
    for word in long.split():
        assert word in text


def test_a_column_is_never_narrower_than_its_longest_word(shown: Any) -> None:
    """Whatever the sentence beside it would like to have."""
    row = ("a-name-of-twenty-five-char", "sentence " * 20, "another-name-of-25-letters")
    lines = shown(("one", "two", "three"), [row])
    assert max(map(len, lines)) <= 80
    assert row[0] in "\n".join(lines) and row[2] in "\n".join(lines)


def test_what_has_no_room_as_a_table_stands_one_below_the_other(shown: Any) -> None:
    """As psql does it: a row is a block, and whatever can be typed again is whole."""
    rows = [
        (QUEUE, "3", "twinbus dlq show primary/x-servicebus-transfer/0 --secondary"),
        ("orders", "4", ""),
    ]
    lines = shown(COLUMNS, rows, width=60, title="The backlog")
    assert lines == [
        "The backlog",
        f"queue       {QUEUE}",
        "messages    3",
        "what to do  twinbus dlq show primary/x-servicebus-transfer/0",
        "              --secondary",
        "",
        "queue       orders",
        "messages    4",
    ]


def test_numbers_stay_whole_and_stand_to_the_right(shown: Any) -> None:
    lines = shown(("kind", "count"), [("sends", "1"), ("polls", "1,000")], numbers_from=1)
    assert "│     1 │" in "\n".join(lines)
    wide = [str(10**30)] * 4
    lines = shown(
        ("kind", "a", "b", "c", "d"), [("sends", *wide)], numbers_from=1, totals=[("all", *wide)]
    )
    assert max(map(len, lines)) <= 80 and "\n".join(lines).count(wide[0]) == 8
