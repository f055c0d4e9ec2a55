"""Children end, used or not, and the parent's connection goes on: connections.py DRIVER CA_FILE"""

from __future__ import annotations

import os
import sys
from typing import Any

import twinbus


def link(orders: twinbus.QueueClient) -> Any:
    """What the parent is connected by: another one after every loss."""
    sender: Any = orders._ends().sender.paired_sender._links.primary()
    return getattr(sender, "_end", None) or sender._link


def main(driver: Any, ca_file: str) -> None:
    with twinbus.MessagingFactory.from_environment(driver=driver, ca_file=ca_file) as factory:
        orders = factory.create_queue_client("orders")
        orders.send(twinbus.BrokeredMessage(b"parent"))
        before = link(orders)
        for is_used in (False, True):
            pid = os.fork()
            if pid == 0:
                if is_used:
                    orders.send(twinbus.BrokeredMessage(b"child"))
                sys.exit()
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            orders.send(twinbus.BrokeredMessage(b"parent"))
        assert link(orders) is before
        print(len(orders.peek(10)))


if __name__ == "__main__":
    main(*sys.argv[1:])
