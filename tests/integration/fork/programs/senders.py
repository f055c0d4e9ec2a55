"""A sender that the parent has used is inherited by two children: python senders.py KIND"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack

import twinbus

CHILDREN = 2
MESSAGES = 12
"""A sender that sends more than ten in ten seconds gets a connection of its own."""

Send = Callable[[str], None]


def opened(stack: ExitStack, kind: str) -> Send:
    """What sends to the queue of a new pair: ``drop-in``, or a factory's driver."""
    if kind == "drop-in":
        return drop_in(stack)
    primary = stack.enter_context(twinbus.MessagingFactory.from_environment(driver=kind))
    return paired_factory(stack, kind, primary)


def paired_factory(stack: ExitStack, driver: str, primary: twinbus.MessagingFactory) -> Send:
    secondary = stack.enter_context(
        twinbus.MessagingFactory.from_environment(role="secondary", driver=driver)
    )
    manager = twinbus.NamespaceManager.from_connection_string(
        os.environ["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
    )
    options = twinbus.SendAvailabilityPairedNamespaceOptions.from_environment(manager, secondary)
    primary.pair_namespace(options)
    orders = primary.create_queue_client("orders")
    return lambda text: orders.send(twinbus.BrokeredMessage(text.encode()))


def drop_in(stack: ExitStack) -> Send:
    from azure.servicebus import ServiceBusMessage

    from twinbus.azure import PairedServiceBusClient

    client = stack.enter_context(
        PairedServiceBusClient.from_connection_string(os.environ["SERVICEBUS_CONNECTION_STRING"])
    )
    orders = stack.enter_context(client.get_queue_sender("orders"))
    return lambda text: orders.send_messages(ServiceBusMessage(text))


def send_all(send: Send, who: str) -> None:
    for number in range(MESSAGES):
        send(f"{who} {number}")


def child(send: Send, who: str, how: str) -> None:
    send_all(send, who)
    if how == "hard":
        os._exit(0)
    sys.exit()  # The whole end of an interpreter, and of every `with` around it.


def main(kind: str, how: str) -> None:
    with ExitStack() as stack:
        send = opened(stack, kind)
        send_all(send, "parent before")
        children = []
        for number in range(CHILDREN):
            pid = os.fork()
            if pid == 0:
                child(send, f"child {number}", how)
            children.append(pid)
        send_all(send, "parent beside")
        for pid in children:
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
        send_all(send, "parent after")


if __name__ == "__main__":
    main(*sys.argv[1:])
