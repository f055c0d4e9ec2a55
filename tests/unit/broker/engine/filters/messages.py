"""Messages as records, for the tests of rules."""

from __future__ import annotations

from random import Random
from typing import Any

from twinbus.amqp.codec.encode import encode_value
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.message.message import Body, Message
from twinbus.amqp.message.properties import Properties
from twinbus.broker.engine.filters import (
    Filter,
    Match,
    MessageView,
    RuleDescription,
    RuleIndex,
    SqlAction,
    SqlFilter,
    compile_rule,
)
from twinbus.broker.engine.stored_message import Record
from twinbus.common.steps import run_steps

NOW_MS = 1_700_000_000_000


def record_of(
    own: dict[str, Any] | None = None,
    *,
    body: Body = b"body",
    annotations: dict[str, Any] | None = None,
    footer: dict[Any, Any] | None = None,
    **properties: Any,
) -> Record:
    """A stored message with these application properties and AMQP properties."""
    message = Message(
        properties=Properties(**properties) if properties else None,
        application_properties=own,
        body=body,
        footer=footer,
    )
    pairs = [
        encode_value(Symbol(key)) + encode_value(value)
        for key, value in (annotations or {}).items()
    ]
    return Record(message.encode(), annotation_count=len(pairs), annotation_pairs=b"".join(pairs))


def view_of(own: dict[str, Any] | None = None, **properties: Any) -> MessageView:
    return MessageView.from_record(record_of(own, **properties), now_ms=NOW_MS, random=Random(1))


def rule(described: Filter | str, action: str | None = None, name: str = "rule") -> RuleDescription:
    """A rule from a filter, or from the text of a SQL filter."""
    chosen = SqlFilter(described) if isinstance(described, str) else described
    return RuleDescription(name, chosen, None if action is None else SqlAction(action))


def answer(described: Filter | str, view: MessageView) -> bool | None:
    """What a filter says about a message."""
    return compile_rule(rule(described)).matches(view)


def matching(book: RuleIndex[Any], view: MessageView) -> list[Match[Any]]:
    """Every subscription that gets the message, without the pauses between the steps."""
    return run_steps(book.matching_steps(view))


def records(match: Match[Any], view: MessageView) -> list[Record | None]:
    """What the subscription of a match gets, likewise."""
    return run_steps(match.record_steps(view))
