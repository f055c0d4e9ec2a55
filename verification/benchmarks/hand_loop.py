"""The loop people write by hand to bring a backlog home, with the stock SDK; a program.

    for each backlog queue in turn: receive up to 100 -> one send for each destination -> complete

It keeps body, ids, texts and application properties, settles a message after its copy was
acknowledged, and does nothing about faults: it is the happy path of a page of documentation. One
process, one thread. It ends when a whole turn found nothing, or when its time is up, and prints
what it did as one line of JSON.

    SERVICEBUS_CONNECTION_STRING             where the messages belong
    SERVICEBUS_SECONDARY_CONNECTION_STRING   where they wait
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)

NAME: Final = "loop by hand, stock SDK"
DESTINATION: Final = b"x-ms-path"
MESSAGES_MAX: Final = 100
WAIT_S: Final = 1.0


def copy_of(message: ServiceBusReceivedMessage) -> tuple[str, ServiceBusMessage]:
    """Where the message was meant to go, and a message like it."""
    properties: dict[Any, Any] = dict(message.application_properties or {})
    destination = properties.pop(DESTINATION).decode()
    body: Any = message.body
    copy = ServiceBusMessage(
        b"".join(body),
        application_properties=properties or None,
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
    )
    return destination, copy


def move_some(receiver: ServiceBusReceiver, senders: Mapping[str, ServiceBusSender]) -> int:
    """One receive, and what follows from it."""
    messages = receiver.receive_messages(max_message_count=MESSAGES_MAX, max_wait_time=WAIT_S)
    outgoing: dict[str, list[ServiceBusMessage]] = {}
    for message in messages:
        destination, copy = copy_of(message)
        outgoing.setdefault(destination, []).append(copy)
    for destination, copies in outgoing.items():
        senders[destination].send_messages(copies)
    for message in messages:
        receiver.complete_message(message)
    return len(messages)


def run(
    home: str, away: str, *, queues: Sequence[str], destinations: Sequence[str], seconds_max: float
) -> dict[str, float]:
    """Move until nothing is left or the time is up.

    Opening links is not counted: the SDK takes half a second for each, which is its start and not
    its speed."""
    with ExitStack() as stack:
        primary = stack.enter_context(ServiceBusClient.from_connection_string(home))
        secondary = stack.enter_context(ServiceBusClient.from_connection_string(away))
        receivers = [stack.enter_context(secondary.get_queue_receiver(q)) for q in queues]
        senders = {d: stack.enter_context(primary.get_queue_sender(d)) for d in destinations}
        return _timed(receivers, senders, seconds_max)


def _timed(
    receivers: Sequence[ServiceBusReceiver],
    senders: Mapping[str, ServiceBusSender],
    seconds_max: float,
) -> dict[str, float]:
    moved, in_vain = 0, 0
    began_s = last_s = time.monotonic()
    for receiver in cycle(receivers):
        if last_s - began_s >= seconds_max or in_vain == len(receivers):
            break
        some = move_some(receiver, senders)
        moved += some
        in_vain = 0 if some else in_vain + 1
        # A wait for messages that do not come is not work.
        last_s = time.monotonic() if some else last_s
    return {"messages": moved, "seconds": last_s - began_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", nargs="+", required=True)
    parser.add_argument("--destinations", nargs="+", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    done = run(
        os.environ["SERVICEBUS_CONNECTION_STRING"],
        os.environ["SERVICEBUS_SECONDARY_CONNECTION_STRING"],
        queues=options.queues,
        destinations=options.destinations,
        seconds_max=options.seconds,
    )
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
