"""A factory of a module is used by the processes of a pool, which are forked from it."""

from __future__ import annotations

import multiprocessing
import os

import twinbus

WORKERS, TASKS = 3, 12

primary = twinbus.MessagingFactory.from_environment(driver="amqp")
secondary = twinbus.MessagingFactory.from_environment(role="secondary", driver="amqp")
manager = twinbus.NamespaceManager.from_connection_string(
    os.environ["SERVICEBUS_SECONDARY_CONNECTION_STRING"]
)
primary.pair_namespace(
    twinbus.SendAvailabilityPairedNamespaceOptions.from_environment(manager, secondary)
)
orders = primary.create_queue_client("orders")


def place(number: int) -> int:
    orders.send(twinbus.BrokeredMessage(f"order {number}".encode()))
    return os.getpid()


def main() -> None:
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        workers = set(pool.map(place, range(TASKS), chunksize=1))
        assert os.getpid() not in workers
        pool.close()
        pool.join()
    orders.send(twinbus.BrokeredMessage(b"the last order"))


if __name__ == "__main__":
    main()
    primary.close()
    secondary.close()
