"""How a management request is answered: well, with nothing, or with a refusal (replies.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinbus.amqp.errors import AmqpError, Condition
from twinbus.amqp.types import Int, Symbol
from twinbus.broker.replies import Reply
from twinbus.broker.sending import as_amqp_error

_STATUS = {
    Condition.MESSAGE_LOCK_LOST: 410,
    Condition.SESSION_LOCK_LOST: 410,
    Condition.MESSAGE_NOT_FOUND: 404,
    Condition.NOT_FOUND: 404,
    Condition.UNAUTHORIZED_ACCESS: 401,
    Condition.NOT_IMPLEMENTED: 501,
    Condition.SERVER_BUSY: 503,
    Condition.INTERNAL_ERROR: 500,
    Condition.ENTITY_DISABLED: 403,
    Condition.RESOURCE_LIMIT_EXCEEDED: 403,
}

Answer = Callable[[Reply], None]


def ok(body: Any = None) -> Reply:
    return Reply({"statusCode": Int(200), "statusDescription": "OK"}, body)


def empty() -> Reply:
    return Reply({"statusCode": Int(204), "statusDescription": "No content"})


def refused(error: AmqpError) -> Reply:
    status = {str(key): value for key, value in _STATUS.items()}.get(error.condition, 400)
    return Reply(
        {
            "statusCode": Int(status),
            "statusDescription": error.description,
            "errorCondition": Symbol(error.condition),
        }
    )


class ReplyAck:
    """Answers a request once its change is on disk."""

    def __init__(self, answer: Answer, body: Callable[[range], Any] = lambda _seqs: None) -> None:
        self._answer = answer
        self._body = body

    def stored(self, seqs: range) -> None:
        self._answer(ok(self._body(seqs)))

    def failed(self, error: Exception) -> None:
        self._answer(refused(as_amqp_error(error)))


def bad_request(reason: str) -> AmqpError:
    return AmqpError(Condition.ARGUMENT_ERROR, f"The request is wrong: {reason}.")
