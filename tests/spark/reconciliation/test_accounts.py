"""One account for each id: so many sent, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.reconciliation.rows import BACKLOG, frame
from twinbus.cost.reconciliation import AvailableSources, MessageStatus
from twinbus.spark.reconciliation.accounts import (
    ALWAYS,
    TOOK,
    Time,
    accounts_of,
    by_entity,
    entries,
    within,
)
from twinbus.spark.reconciliation.copies import COPY_COLUMNS
from twinbus.spark.reconciliation.differences import that_differ
from twinbus.spark.reconciliation.log_tables import RECEIPTS, SENT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = AvailableSources(client=True, primary=True, secondary=True, receipts=True)


def copy(message_id: str | None, status: str, **more: Any) -> dict[str, Any]:
    side = "backlog" if status in ("left-backlog", "in-backlog") else "primary"
    usual = {"side": side, "entity": "orders", "copy": "1", "is_older": False, "is_signed": False}
    return {**usual, "message_id": message_id, "status": status, "born_ms": 1_000, **more}


def sent(message_id: str | None, via: str = "", at_ms: int = 900) -> dict[str, Any]:
    return {"entity": "orders", "message_id": message_id, "via": via, "at_ms": at_ms}


def receipt(message_id: str | None, outcome: str) -> dict[str, Any]:
    return {"queue": BACKLOG, "entity": "orders", "message_id": message_id, "outcome": outcome}


class Books:
    """The accounts of literal rows, by message id."""

    def __init__(
        self,
        spark: SparkSession,
        given: AvailableSources,
        *,
        copies: list[dict[str, Any]],
        sent: list[dict[str, Any]] | None = None,
        receipts: list[dict[str, Any]] | None = None,
        time: Time = ALWAYS,
    ) -> None:
        self.accounts: DataFrame = entries(
            frame(spark, COPY_COLUMNS, copies),
            frame(spark, SENT_COLUMNS, sent or []),
            frame(spark, RECEIPTS, receipts or []),
            given,
        ).transform(accounts_of, given, time)

    def told(self) -> dict[str | None, dict[str, int]]:
        """Of each id what is not zero."""
        names = {**{name: status.value for status, name in TOOK.items()}}
        names |= {name: name for name in ("unexpected", "duplicates", "explained")}
        found = {}
        for row in self.accounts.collect():
            found[row["message_id"]] = {
                word: row[name] for name, word in names.items() if row[name]
            }
        return found


def test_with_every_log_each_send_has_one_fate(spark: SparkSession) -> None:
    """C3: sent = delivered + waiting + in backlog + ...; duplicates and strangers stand beside."""
    books = Books(
        spark,
        EVERYTHING,
        sent=[
            sent("direct"),
            sent("detoured", BACKLOG),
            sent("on its way", BACKLOG),
            sent("dropped", BACKLOG),
            sent("vanished"),
            sent("both ways", BACKLOG),
            sent("moved twice", BACKLOG),
            sent("unexplained"),
            sent("used twice"),
            sent("used twice", BACKLOG),
            sent("repeated"),
            sent("repeated"),
            sent(None),
            sent(None, BACKLOG),
            sent(None, BACKLOG),
        ],
        copies=[
            copy("direct", "delivered"),
            copy("detoured", "left-backlog"),
            copy("detoured", "delivered"),
            copy("on its way", "in-backlog"),
            # Somebody completed it in the backlog, and it never came home.
            copy("dropped", "left-backlog"),
            # The primary stored it without an answer: it was sent to the backlog, too.
            copy("both ways", "delivered"),
            copy("both ways", "left-backlog"),
            copy("both ways", "waiting", copy="2"),
            copy("moved twice", "left-backlog"),
            copy("moved twice", "delivered"),
            copy("moved twice", "dead-lettered", copy="2"),
            copy("unexplained", "delivered"),
            copy("unexplained", "delivered", copy="2"),
            # The application used an id for two messages, and one of them is nowhere.
            copy("used twice", "delivered"),
            copy("used twice", "left-backlog"),
            copy("repeated", "waiting"),
            copy("repeated", "dropped", copy="2"),
            copy("stranger", "waiting"),
            copy("older", "waiting", is_older=True),
            copy(None, "delivered"),
            copy(None, "left-backlog"),
            copy(None, "left-backlog"),
            copy(None, "expired"),
        ],
        receipts=[receipt("moved twice", "lock-lost"), receipt("moved twice", "moved")],
    )

    assert books.told() == {
        "direct": {"delivered": 1},
        "detoured": {"delivered": 1},
        "on its way": {"in-backlog": 1},
        "dropped": {"missing": 1},
        "vanished": {"missing": 1},
        "both ways": {"delivered": 1, "duplicates": 1, "explained": 1},
        "moved twice": {"delivered": 1, "duplicates": 1, "explained": 1},
        "unexplained": {"delivered": 1, "duplicates": 1},
        "used twice": {"delivered": 1, "missing": 1},
        "repeated": {"waiting": 1},
        "stranger": {"unexpected": 1},
        "older": {},
        None: {"delivered": 1, "expired": 1, "missing": 1},
    }
    (orders,) = by_entity(books.accounts).collect()
    assert orders["sent"] == 14
    assert orders["sent"] == sum(orders[name] for name in TOOK.values())
    assert (orders["without_id"], orders["unexpected"], orders["doubled"]) == (3, 1, 1)
    differing = {row["message_id"]: tuple(row)[2:] for row in that_differ(books.accounts).collect()}
    assert differing == {
        "dropped": (1, 0, 0),
        "vanished": (1, 0, 0),
        "used twice": (1, 0, 0),
        None: (1, 0, 0),
        "stranger": (0, 1, 0),
        "unexplained": (0, 0, 1),
    }


def test_an_id_counts_when_one_of_its_sends_is_in_the_time(spark: SparkSession) -> None:
    """C3: messages whose send falls in the range; their fates may come later."""
    books = Books(
        spark,
        EVERYTHING,
        time=Time(200, 300),
        sent=[
            sent("early", at_ms=100),
            sent("in", at_ms=200),
            sent("late", at_ms=300),
            # Used again in the time, and lost then; and one that was used before and after it.
            sent("again", at_ms=100),
            sent("again", at_ms=250),
            sent("around", at_ms=100),
            sent("around", at_ms=300),
        ],
        copies=[
            copy("early", "delivered", born_ms=250),
            copy("again", "delivered", born_ms=101),
            copy("in", "delivered", born_ms=9_000),
            copy("late", "waiting", born_ms=299),
            copy("stranger", "waiting", born_ms=210),
            copy("later stranger", "waiting", born_ms=300),
        ],
    )

    found = within(books.accounts).collect()

    assert sorted(row["message_id"] for row in found) == ["again", "in", "stranger"]
    assert books.told()["again"] == {"delivered": 1, "missing": 1}


def test_a_second_copy_does_not_stand_for_a_lost_message(spark: SparkSession) -> None:
    """C3: of what has no id nobody knows which arrived twice; that is said, and not delivered."""
    books = Books(
        spark,
        EVERYTHING,
        sent=[sent(None, BACKLOG), sent(None, BACKLOG), sent("named", BACKLOG)],
        copies=[
            copy(None, "delivered"),
            copy(None, "waiting"),
            copy(None, "left-backlog"),
            copy(None, "left-backlog"),
            copy("named", "left-backlog"),
            copy("named", "delivered"),
        ],
        receipts=[
            receipt(None, "lock-lost"),
            receipt(None, "moved"),
            receipt("named", "lock-lost"),
            receipt("named", "moved"),
        ],
    )

    assert books.told() == {
        None: {"delivered": 1, "unproven": 1},
        "named": {"delivered": 1},
    }


@pytest.mark.parametrize(
    ("given", "fates"),
    [
        # The primary's log shows what arrived, and what did not although it was answered.
        (
            AvailableSources(client=True, primary=True),
            {"direct": "delivered", "detoured": "unproven", "taken": "missing"},
        ),
        # Who completed a message of the backlog: with receipts it was the syphon, or not.
        (
            AvailableSources(client=True, secondary=True, receipts=True),
            {
                "direct": "unproven",
                "detoured": "unproven",
                "taken": "unproven",
                "robbed": "missing",
            },
        ),
    ],
)
def test_what_the_logs_do_not_show_is_unproven(
    spark: SparkSession, given: AvailableSources, fates: dict[str, str]
) -> None:
    """C3: each source alone is usable, and nothing is called delivered that no log shows."""
    sends = [sent("direct"), sent("detoured", BACKLOG), sent("taken")]
    copies = [copy("direct", "delivered")] if given.primary else []
    if given.secondary:
        copies.append(copy("detoured", "left-backlog", is_signed=given.receipts))
    if given.secondary and given.receipts:
        sends.append(sent("robbed", BACKLOG))
        copies.append(copy("robbed", "left-backlog"))

    books = Books(spark, given, sent=sends, copies=copies)

    assert books.told() == {message_id: {status: 1} for message_id, status in fates.items()}


def test_without_a_client_what_was_stored_was_sent(spark: SparkSession) -> None:
    """C3: an id is one message then; what has no id counts as often as it was stored."""
    given = AvailableSources(primary=True, secondary=True, receipts=True)
    nameless = [
        copy(None, status) for status in ("delivered", "waiting", "left-backlog", "left-backlog")
    ]
    books = Books(
        spark,
        given,
        copies=[
            copy("direct", "delivered"),
            copy("detoured", "left-backlog", is_signed=True),
            copy("detoured", "waiting"),
            copy("dropped", "left-backlog"),
            copy("older", "waiting", is_older=True),
            *nameless,
        ],
        receipts=[receipt("detoured", "moved"), receipt(None, "moved")],
    )

    assert books.told() == {
        "direct": {"delivered": 1},
        "detoured": {"waiting": 1},
        "dropped": {"missing": 1},
        "older": {},
        # One was sent directly and two went away; of these only one has a receipt.
        None: {"delivered": 1, "waiting": 1, "missing": 1},
    }
    assert TOOK[MessageStatus.MISSING] in books.accounts.columns
