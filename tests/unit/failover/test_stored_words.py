"""Words that are stored or sent keep their spelling, whatever the classes are called."""

import json
from dataclasses import fields
from typing import get_args

from twinbus.failover import events
from twinbus.mover.planning.receipts import Receipt, ReceiptOutcome, to_json_line
from twinbus.mover.planning.work_order import WorkReport, report_from_json, report_to_json
from twinbus.pairing import events as events_module
from twinbus.pairing.operator_commands import OperatorCommand
from twinbus.spark.cost_report.state import Manifest
from twinbus.spark.syphon.state_directory import Control, Status


def test_every_event_has_its_stored_name() -> None:
    """Journals and logs carry these names."""
    assert set(events_module._NAMES) == set(get_args(events.Event))
    assert list(events_module._NAMES.values()) == [
        "suspected",
        "suspicion-cleared",
        "diverted",
        "ping-sent",
        "ping-failed",
        "ping-refused",
        "restore-delayed",
        "restored",
        "entity-held",
        "backlog-queue-withdrawn",
        "backlog-queue-reinstated",
        "backlog-exhausted",
        "backlog-unreachable",
        "backlog-ready",
        "possible-duplicate",
        "backlog-threshold-crossed",
        "backlog-unattended",
        "syphon-stalled",
        "claim-missing",
        "dead-lettered",
        "foreign-messages",
        "backlog-drained",
        "factory-closed",
        "factory-faulted",
    ]


def test_every_outcome_has_its_stored_word() -> None:
    """Receipts carry these words, in Parquet and in JSON."""
    assert [outcome.value for outcome in ReceiptOutcome] == [
        "moved",
        "deferred",
        "dead-lettered",
        "ambiguous",
        "lock-lost",
        "released",
        "foreign",
        "would-move",
        "would-dead-letter",
    ]


def test_a_receipt_has_its_stored_keys() -> None:
    receipt = Receipt("q", 1, None, "d", next(iter(ReceiptOutcome)), "", 2, None, 3, 4, "h", 5)
    assert json.loads(to_json_line(receipt)) == {
        "queue": "q",
        "sequence_number": 1,
        "message_id": None,
        "destination": "d",
        "outcome": "moved",
        "reason": "",
        "size_bytes": 2,
        "enqueued_ms": None,
        "received_ms": 3,
        "settled_ms": 4,
        "host": "h",
        "pid": 5,
    }


def test_a_report_of_a_task_has_its_keys() -> None:
    sent = report_to_json(WorkReport())
    assert list(sent) == [
        "aside",
        "board",
        "opened",
        "emptied",
        "discovered",
        "to_discover",
        "faults",
        "is_primary_away",
        "debt_s",
    ]
    assert report_from_json(sent) == WorkReport()


def test_files_of_operators_have_their_keys() -> None:
    """These files are written from the fields of their classes."""
    assert [each.name for each in fields(OperatorCommand)] == ["order", "is_held", "at"]
    assert [each.name for each in fields(Control)] == [
        "is_paused",
        "is_stopping",
        "rate_per_s",
        "run",
    ]
    assert [each.name for each in fields(Status)] == [
        "doing",
        "counts",
        "moved_bytes",
        "deferred_now",
        "foreign",
        "faults",
        "refused",
        "stalled",
        "epoch",
        "pid",
        "updated_ms",
    ]
    assert [each.name for each in fields(Manifest)] == ["bundles", "days"]
