"""What the roles do in their processes: ``python -m verification.fault_campaign.roles NAME``.

    Sending, Receiving, Moving, Probing

Rule 1: everything is written down before and after it is done (history.py); what is not written
        down did not get an answer.
Rule 2: a role never gives up: whatever goes wrong it tries again, until SIGTERM.
Rule 3: the brokers' addresses, keys included, come in the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from azure.core.exceptions import AzureError

from twinbus.aio import (
    BrokeredMessage,
    MessageSender,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.common.connection_string import parse_connection_string
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.azure_sdk.sdk_messages import encoded_batch
from twinbus.drivers.interface import Receiver, Sender
from twinbus.encoding.brokered_message import decode_message, encode_message
from twinbus.encoding.transit import OutgoingMessage, ReceivedMessage
from twinbus.errors import BatchPartlySent, OperationTimeout, ServiceError, TwinbusError
from twinbus.failover.events import PossibleDuplicate
from twinbus.mover.mover import Mover, MoverOptions
from twinbus.mover.planning.chunk_plan import DeliveryRules
from twinbus.mover.planning.receipts import Receipt
from twinbus.pairing.backlog_queues import owner_mark
from twinbus.pairing.events import EventRecord
from verification.fair_clock import FairClock
from verification.fault_campaign.history import LOCK_LOST, Journal
from verification.fault_campaign.messages import differences, message_of, print_of
from verification.fault_campaign.plan import (
    AWAY_SENDERS,
    BRIEF,
    BRIEF_S,
    DROP_IN_SENDERS,
    PRIMARY,
    PROBE,
    PROBE_PAUSE_S,
    SDK_SENDERS,
    SECONDARY,
    TOPIC,
    TWIN,
    Plan,
    kind_of,
)

Send = Callable[[Sequence[BrokeredMessage]], Awaitable[None]]

PLAN_VARIABLE: Final = "CAMPAIGN_PLAN"
JOURNAL_VARIABLE: Final = "CAMPAIGN_JOURNAL"
ADDRESS_VARIABLES: Final = {PRIMARY: "CAMPAIGN_PRIMARY", SECONDARY: "CAMPAIGN_SECONDARY"}

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
RECEIVE_COUNT_MAX: Final = 50
RECEIVE_WAIT_S: Final = 2.0
COMPLETE_S_MAX: Final = 5.0
# A mover polls for a quarter of an hour and looks for what others set aside once an hour; a run
# has a minute.
POLL_S: Final = 2.0
DISCOVERY_S: Final = 3.0
TRY_AGAIN_S: Final = 0.3
PROBE_S_MAX: Final = 5.0
NOBODY_PORT: Final = 1
TWIN_PAUSE_S: Final = 1.0
TWIN_PING_S: Final = 1_800.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What a role knows."""

    name: str
    plan: Plan
    journal: Journal
    addresses: dict[str, str]
    rng: Random
    stops: asyncio.Event
    primary_lock: Path
    """Names the primary's process while there is one."""

    async def pause(self, seconds: float) -> None:
        """Wait, or less when it is time to stop."""
        try:
            await asyncio.wait_for(self.stops.wait(), seconds)
        except TimeoutError:
            return

    async def again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Until the end, whatever goes wrong."""
        while not self.stops.is_set():
            try:
                await work()
            except TwinbusError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                await self.pause(TRY_AGAIN_S)


# -- senders --------------------------------------------------------------------------------------


class Sending:
    """One application that sends through a pair."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._driver: Literal["servicebus", "amqp"] = "amqp"
        if stage.name.startswith(SDK_SENDERS):
            self._driver = "servicebus"
        self._count = 0

    async def run(self) -> None:
        stage = self._stage
        is_drop_in = stage.plan.crowd > 0 and stage.name.startswith(DROP_IN_SENDERS)
        await stage.again_and_again(self._run_drop_in if is_drop_in else self._run_paired)

    def _factory(self, broker: str) -> MessagingFactory:
        return MessagingFactory.from_connection_string(
            self._stage.addresses[broker], driver=self._driver
        )

    async def _run_paired(self) -> None:
        stage, plan = self._stage, self._stage.plan
        async with (
            self._factory(SECONDARY) as secondary,
            NamespaceManager.from_connection_string(stage.addresses[SECONDARY]) as manager,
            self._factory(PRIMARY) as primary,
        ):
            await primary.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(
                    manager,
                    secondary,
                    plan.backlog_queues_of(stage.name),
                    failover_interval=0,
                    ping_primary_interval=plan.ping_interval_s,
                    namespace_name=PRIMARY,
                    on_event=self._tell,
                    require_secondary=not plan.late_secondary_s,
                )
            )
            if stage.name.startswith(AWAY_SENDERS):
                for path in plan.destinations:
                    primary.force_failover(path)
                    primary.hold(path)
            senders = {path: primary.create_message_sender(path) for path in plan.destinations}
            await self._send_on({path: partial(self._send, senders[path]) for path in senders})

    async def _run_drop_in(self) -> None:
        """The same through the drop-in for the official SDK."""
        from twinbus.azure.aio import PairedServiceBusClient, Pairing

        stage, plan = self._stage, self._stage.plan
        pairing = Pairing(
            secondary=stage.addresses[SECONDARY],
            backlog_queue_count=plan.backlog_queues_of(stage.name),
            failover_interval=0,
            ping_primary_interval=plan.ping_interval_s,
            namespace_name=PRIMARY,
            on_event=self._tell,
        )
        async with PairedServiceBusClient.from_connection_string(
            stage.addresses[PRIMARY], pairing=pairing
        ) as client:
            senders = {
                path: client.get_topic_sender(path)
                if path == TOPIC
                else client.get_queue_sender(path)
                for path in plan.destinations
            }
            await self._send_on({path: partial(self._send_sdk, senders[path]) for path in senders})

    async def _send_on(self, sends: Mapping[str, Send]) -> None:
        """Send until the end: one after the other on some lanes, or in bursts of many."""
        stage, count = self._stage, self._stage.plan.in_flight_of(self._stage.name)
        if count == stage.plan.in_flight:
            await asyncio.gather(*(self._lane(sends) for _ in range(count)))
            return
        while not stage.stops.is_set():
            await asyncio.gather(*(self._one_send(sends) for _ in range(count)))
            await stage.pause(stage.plan.pause_s * count / stage.plan.in_flight)

    async def _lane(self, sends: Mapping[str, Send]) -> None:
        """One send after the other."""
        stage = self._stage
        while not stage.stops.is_set():
            await self._one_send(sends)
            await stage.pause(stage.plan.pause_s * stage.rng.random() * 2)

    async def _one_send(self, sends: Mapping[str, Send]) -> None:
        stage = self._stage
        path = stage.rng.choice(stage.plan.destinations)
        batch = stage.rng.choice((1, stage.rng.randint(1, stage.plan.batch_max)))
        values = tuple(self._next_value() for _ in range(batch))
        stage.journal.write("send", "invoke", values=values, place=path)
        try:
            await sends[path]([message_of(stage.plan, value) for value in values])
        except (TwinbusError, AzureError) as error:
            self._write_failed(values, path, error)
        else:
            stage.journal.write("send", "ok", values=values, place=path)

    async def _send(self, sender: MessageSender, messages: Sequence[BrokeredMessage]) -> None:
        timeout_s = self._stage.plan.send_timeout_s
        if len(messages) == 1:
            await sender.send(messages[0], timeout=timeout_s)
        else:
            await sender.send_batch(messages, timeout=timeout_s)

    async def _send_sdk(self, sender: Any, messages: Sequence[BrokeredMessage]) -> None:
        batch = encoded_batch([encode_message(message) for message in messages])
        await sender.send_messages(batch, timeout=self._stage.plan.send_timeout_s)

    def _write_failed(
        self, values: Sequence[str], path: str, error: TwinbusError | AzureError
    ) -> None:
        """In the error's own words: what is safe, what nobody knows, what was refused."""
        cause: BaseException = error
        if isinstance(error, BatchPartlySent):
            safe, values = values[: error.accepted], values[error.accepted :]
            self._stage.journal.write("send", "ok", values=safe, place=path)
            cause = error.__cause__ or error
        # The SDK's words do not tell what was stored.
        is_unclear = isinstance(error, AzureError) or getattr(error, "is_ambiguous", False)
        facts = {
            "values": values,
            "place": path,
            "detail": type(cause).__name__,
            "count": getattr(cause, "unclear_attempts", None),
        }
        self._stage.journal.write("send", "info" if is_unclear else "fail", **facts)

    def _next_value(self) -> str:
        self._count += 1
        return f"{self._stage.name}-{self._count}"

    def _tell(self, occurrence: EventRecord) -> None:
        note_duplicates(self._stage, occurrence)


def note_duplicates(stage: Stage, occurrence: EventRecord) -> None:
    """Write down what a pair tells of messages that may be there twice."""
    event = occurrence.event
    if isinstance(event, PossibleDuplicate):
        stage.journal.write(
            "possible-duplicate",
            "info",
            values=event.message_ids,
            place=event.path,
            count=event.attempts,
        )


class Twinning:
    """An application whose primary has the same name as ours, and is away: all that it sends goes
    to the backlog queues of ours, and stays there."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._count = 0

    async def run(self) -> None:
        await self._stage.again_and_again(self._run_paired)

    async def _run_paired(self) -> None:
        stage, plan = self._stage, self._stage.plan
        # Its line to the secondary is there, and nothing else.
        nobody = replace(parse_connection_string(stage.addresses[SECONDARY]), port=NOBODY_PORT)
        async with (
            MessagingFactory.from_connection_string(stage.addresses[SECONDARY]) as secondary,
            NamespaceManager.from_connection_string(stage.addresses[SECONDARY]) as manager,
            MessagingFactory.from_connection_string(nobody.to_text()) as primary,
        ):
            await primary.pair_namespace(
                SendAvailabilityPairedNamespaceOptions(
                    manager,
                    secondary,
                    plan.backlog_queues,
                    failover_interval=0,
                    ping_primary_interval=TWIN_PING_S,
                    namespace_name=PRIMARY,
                )
            )
            primary.on_event(partial(note_duplicates, stage))
            sender = primary.create_message_sender(plan.destinations[0])
            while not stage.stops.is_set():
                await self._one_send(sender)
                await stage.pause(TWIN_PAUSE_S)

    async def _one_send(self, sender: MessageSender) -> None:
        self._count += 1
        value, stage = f"{self._stage.name}-{self._count}", self._stage
        stage.journal.write("send", "invoke", values=(value,), place=TWIN)
        try:
            message = message_of(stage.plan, value)
            await sender.send(message, timeout=stage.plan.send_timeout_s)
        except TwinbusError as error:
            is_unclear = getattr(error, "is_ambiguous", False)
            facts = {
                "values": (value,),
                "place": TWIN,
                "detail": type(error).__name__,
                "count": getattr(error, "unclear_attempts", None),
            }
            stage.journal.write("send", "info" if is_unclear else "fail", **facts)
        else:
            stage.journal.write("send", "ok", values=(value,), place=TWIN)


# -- receivers ------------------------------------------------------------------------------------


class Receiving:
    """One application that receives everything that arrives at the primary."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self) -> None:
        places = [place for each in self._stage.plan.places.values() for place in each]
        driver = AmqpDriver.from_connection_string(self._stage.addresses[PRIMARY])
        try:
            await asyncio.gather(*(self._place(driver.receiver(place)) for place in places))
        finally:
            await driver.close()

    async def _place(self, receiver: Receiver) -> None:
        await self._stage.again_and_again(lambda: self._some(receiver))

    async def _some(self, receiver: Receiver) -> None:
        delivered = await receiver.receive(RECEIVE_COUNT_MAX, wait_s=RECEIVE_WAIT_S)
        values = {each.sequence_number: self._note(each, receiver.path) for each in delivered}
        try:
            lost = await receiver.complete(delivered, timeout_s=COMPLETE_S_MAX)
        except ServiceError as error:
            lost, reason = delivered, type(error).__name__
        else:
            reason = LOCK_LOST
        unsure = {each.sequence_number for each in lost}
        for number, value in values.items():
            facts = {"values": (value,), "place": receiver.path, "copy": number}
            if number in unsure:
                self._stage.journal.write("complete", "info", **facts, detail=reason)
            else:
                self._stage.journal.write("complete", "ok", **facts)

    def _note(self, delivered: ReceivedMessage, place: str) -> str:
        message = decode_message(delivered)
        if message.content_type == PING_CONTENT_TYPE:
            self._stage.journal.write("ping", "ok", place=place)
        value, at_ms = str(message.message_id), delivered.enqueued_at_ms
        expected = message_of(self._stage.plan, value)
        if place == BRIEF and message.time_to_live == timedelta(seconds=BRIEF_S):
            message.time_to_live = expected.time_to_live  # The queue shortens it, as it should.
        self._stage.journal.write(
            "receive",
            "ok",
            values=(value,),
            place=place,
            copy=delivered.sequence_number,
            enqueued_s=None if at_ms is None else at_ms / 1_000,
            print=print_of(message),
            detail=", ".join(differences(expected, message)),
        )
        return value


# -- movers ---------------------------------------------------------------------------------------


class Moving:
    """Brings backlog messages home."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self) -> None:
        await self._stage.again_and_again(self._move)

    async def _move(self) -> None:
        stage = self._stage
        secondary, primary = (
            AmqpDriver.from_connection_string(stage.addresses[each])
            for each in (SECONDARY, PRIMARY)
        )
        options = MoverOptions(
            rules=DeliveryRules(primary_name=PRIMARY, owner=owner_mark(primary.address, PRIMARY)),
            poll_s=POLL_S,
            discovery_interval_s=DISCOVERY_S,
            send_timeout_s=stage.plan.send_timeout_s,
            settle_timeout_s=stage.plan.send_timeout_s,
        )
        queues = stage.plan.known_backlog
        mover = Mover(secondary, primary, queues, options, on_receipts=self._note)
        stopping = asyncio.create_task(self._stop(mover))
        try:
            await mover.run()
        finally:
            stopping.cancel()
            await secondary.close()
            await primary.close()

    async def _stop(self, mover: Mover) -> None:
        await self._stage.stops.wait()
        mover.stop()

    def _note(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            self._stage.journal.write(
                "move",
                "info" if receipt.outcome.may_repeat else "ok",
                values=(receipt.message_id or "",),
                place=receipt.queue,
                detail=str(receipt.outcome),
            )


# -- the prober -----------------------------------------------------------------------------------


class Probing:
    """Sends a message to a queue of its own and waits for it: the trouble of others is not his."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self) -> None:
        await self._stage.again_and_again(self._probe_all)

    async def _probe_all(self) -> None:
        driver = AmqpDriver.from_connection_string(self._stage.addresses[PRIMARY])
        # Thirty processes share the processors; what it waits for them is not the primary's doing.
        clock = FairClock(self._primary)
        try:
            sender, receiver = driver.sender(PROBE), driver.receiver(PROBE)
            while not self._stage.stops.is_set():
                began_s = clock()
                try:
                    await self._probe(sender, receiver)
                except ServiceError as error:
                    self._write("info", clock() - began_s, type(error).__name__)
                    raise
                self._write("ok", clock() - began_s)
                await self._stage.pause(PROBE_PAUSE_S)
        finally:
            await driver.close()

    async def _probe(self, sender: Sender, receiver: Receiver) -> None:
        await sender.send(
            [OutgoingMessage(encode_message(BrokeredMessage(b"?")))], timeout_s=PROBE_S_MAX
        )
        # An earlier one whose sender had no answer may be there, too.
        found = await receiver.receive(RECEIVE_COUNT_MAX, wait_s=PROBE_S_MAX)
        if not found:
            raise OperationTimeout("a probe did not come back", path=PROBE)
        await receiver.complete(found, timeout_s=PROBE_S_MAX)

    def _primary(self) -> list[int]:
        """Its process, when there is one."""
        with suppress(OSError, ValueError):
            return [int(self._stage.primary_lock.read_text())]
        return []

    def _write(self, type: Literal["ok", "info"], took_s: float, detail: str = "") -> None:
        self._stage.journal.write("probe", type, took_s=took_s, detail=detail)


# -- the program ----------------------------------------------------------------------------------

ROLES = {
    "sender": Sending,
    "receiver": Receiving,
    "mover": Moving,
    "prober": Probing,
    TWIN: Twinning,
}


async def play(name: str, environment: dict[str, str]) -> None:
    stage = Stage(
        name=name,
        plan=Plan.from_json(environment[PLAN_VARIABLE]),
        journal=Journal(Path(environment[JOURNAL_VARIABLE]), name),
        addresses={
            broker: environment[each]
            for broker, each in ADDRESS_VARIABLES.items()
            if each in environment
        },
        rng=Random(f"{Plan.from_json(environment[PLAN_VARIABLE]).seed}-{name}"),
        stops=asyncio.Event(),
        primary_lock=Path(environment[JOURNAL_VARIABLE]).with_name(f"{PRIMARY}.data") / "lock",
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stage.stops.set)
    print("ready", flush=True)
    await ROLES[kind_of(name)](stage).run()
    stage.journal.close()


def main() -> None:
    asyncio.run(play(sys.argv[1], dict(os.environ)))


if __name__ == "__main__":
    main()
