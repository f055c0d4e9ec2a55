"""``twinbus pair`` and ``twinbus preflight``: what they do.

Does what ``twinbus pair plan`` and ``twinbus pair apply`` were asked for.

Does what ``twinbus pair status`` was asked for: looks, judges, renders.

Does what ``twinbus preflight`` was asked for: looks, judges, renders.

Rule 1: a plan says what pairing would do, by the same rules (P4); it changes nothing.
Rule 2: a namespace that says anything at all answers, if only that there is no such queue.
Rule 3: nobody receives from a backlog whose oldest message stays the same one (Y7); while the
        primary is away that is as it should be.
Rule 4: what is diverted is what the journals say, and a syphon is paused if its state directory
        says so: both are files of this machine, and without them nothing is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import typer

from twinbus.cli.pair.backlog_cleanup import queues_of
from twinbus.cli.pair.commands import PreflightOptions
from twinbus.cli.shared.namespace_options import PairTarget
from twinbus.cli.shared.output import counted, plain, show_block, show_json, show_records
from twinbus.cli.syphon.commands import default_state_dir
from twinbus.common.event_loop import bounded_gather
from twinbus.errors import (
    CommunicationError,
    ConfigurationError,
    EntityNotFound,
    OperationTimeout,
    ServiceError,
)
from twinbus.mover.backlog_search import BacklogSearch
from twinbus.mover.primary_probe import PROBE_PATH
from twinbus.pairing.backlog_monitor import BacklogReader, QueueBacklog
from twinbus.pairing.backlog_queues import backlog_paths, drift_of, owner_mark, unsafe_property
from twinbus.pairing.client.namespace_connection import NamespaceConnection
from twinbus.pairing.client.namespace_manager import NamespaceManager
from twinbus.pairing.events import Diversion, diversions, read_journal
from twinbus.pairing.preflight import (
    ExpectedLoad,
    NamespaceAccess,
    Observations,
    Report,
    Severity,
    collect_observations,
    run_checks,
)
from twinbus.pairing.provisioning import AT_ONCE_MAX, Provisioned, provision

__all__ = ["StatusOptions", "applied", "planned", "run_preflight", "show_status"]

CHANGE_COLUMNS = ("queue", "what", "why")


def planned(where: PairTarget, count: int, output: str) -> bool:
    """Show what would be made; whether all queues can be used then."""

    async def look(secondary: NamespaceConnection, name: str, owner: str) -> list[dict[str, Any]]:
        async def looked_at(path: str) -> dict[str, Any]:
            found = await secondary.management.get_queue(path)
            if found is None:
                return _row(path, "would be created")
            danger = unsafe_property(found)
            if danger is not None:
                return _row(path, "cannot be used", danger)
            drift = "; ".join(
                f"{d.name} is {d.found}, not {d.wanted}" for d in drift_of(found, owner)
            )
            return _row(path, "is there", drift)

        return await bounded_gather(
            backlog_paths(name, count), looked_at, concurrency_max=AT_ONCE_MAX
        )

    return _shown(asyncio.run(_with_secondary(where, look)), output)


def applied(where: PairTarget, count: int, output: str) -> bool:
    """Make what is missing; whether all queues can be used."""

    async def make(secondary: NamespaceConnection, name: str, owner: str) -> list[dict[str, Any]]:
        manager = NamespaceManager.over(secondary.management, secondary.driver.address)
        done = await provision(
            manager=manager, driver=secondary.driver, primary_name=name, count=count, owner=owner
        )
        return _rows(done)

    return _shown(asyncio.run(_with_secondary(where, make)), output)


async def _with_secondary(where: PairTarget, work: Any) -> list[dict[str, Any]]:
    name = await where.primary_name()
    async with where.opened("primary") as primary, where.opened("secondary") as secondary:
        owner = owner_mark(primary.driver.address, name)
        rows: list[dict[str, Any]] = await work(secondary, name, owner)
    return rows


def _rows(done: Provisioned) -> list[dict[str, Any]]:
    drift: dict[str, list[str]] = {}
    for each in done.drift:
        drift.setdefault(each.path, []).append(f"{each.name} is {each.found}, not {each.wanted}")
    unseen = f"its properties are not known: {done.unmanaged}" if done.unmanaged else ""
    return [
        *(_row(path, "created") for path in done.created),
        *(_row(path, "is there", "; ".join(drift.get(path, [])) or unseen) for path in done.found),
        *(_row(each.path, "cannot be used", each.reason) for each in done.missing),
    ]


def _row(queue: str, what: str, why: str = "") -> dict[str, Any]:
    return {"queue": queue, "what": what, "why": why}


def _shown(rows: list[dict[str, Any]], output: str) -> bool:
    show_records(rows, output, CHANGE_COLUMNS)
    return not any(each["what"] == "cannot be used" for each in rows)


CONTACT_TIMEOUT_S: Final = 10.0
FULL_PERCENT: Final = 80.0
BACKLOG_COLUMNS: Final = ("queue", "messages", "dead_letters", "oldest_age_s", "percent_full")


@dataclass(frozen=True, slots=True)
class Reachability:
    """Whether a namespace answers."""

    role: str
    address: str
    answers: bool
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """What the command line said."""

    backlog_queue_count: int | None = None
    watch_s: float
    journals: tuple[Path, ...] = ()
    state: Path | None = None
    """Where the syphon has its state; None: where it has it unless told otherwise."""


@dataclass(frozen=True, slots=True)
class SyphonState:
    """What a syphon was told last, by its state directory."""

    state: str
    is_running: bool
    is_paused: bool

    @property
    def resume(self) -> str:
        """The command that ends its pause."""
        given = "" if Path(self.state) == default_state_dir() else f" --state {self.state}"
        return f"`twinbus syphon resume{given}`"


def show_status(where: PairTarget, options: StatusOptions, output: str) -> bool:
    """Show the pair; whether all is well."""
    diverted = _diverted(options.journals)
    syphon = _syphon(options.state)
    contacts, queues, attention = asyncio.run(_looked(where, options, syphon))
    attention += [_told(each) for each in diverted if each.ended is None]
    backlog = [plain(each) for each in queues]
    if output == "table":
        show_records(
            [plain(each) for each in contacts], output, ("role", "address", "answers", "says")
        )
        if backlog:
            show_records(backlog, output, BACKLOG_COLUMNS, numbers_from=1)
        for sentence in attention:
            typer.echo(f"look at this: {sentence}")
        typer.echo(_waiting(contacts[1], queues))
    else:
        record = {
            **{each.role: plain(each) for each in contacts},
            "backlog": backlog,
            "diverted": [plain(each) for each in diverted],
            "syphon": None if syphon is None else plain(syphon),
            "attention": attention,
        }
        show_json(record, output)
    return not attention


def _waiting(secondary: Reachability, queues: Sequence[QueueBacklog]) -> str:
    where = counted(len(queues), "backlog queue")
    known = [each.messages for each in queues if each.messages is not None]
    if not secondary.answers or (queues and not known):
        return "what waits in the backlog is not known"
    rest = f", and {len(queues) - len(known)} could not be read" if len(known) < len(queues) else ""
    return f"{counted(sum(known), 'message')} in {where}{rest}"


def _diverted(journals: Sequence[Path]) -> list[Diversion]:
    found: list[Diversion] = []
    for path in journals:
        try:
            found += diversions(read_journal(path))
        except OSError as error:
            raise ConfigurationError(
                f"the journal {str(path)!r:.200} cannot be read: {error.strerror}",
                hint="Give --journal as the applications have their option journal",
            ) from error
    return found


def _told(diversion: Diversion) -> str:
    what = "is held on the backlog" if diversion.is_held else "is diverted"
    why = f": {diversion.reason}" if diversion.reason else ""
    return (
        f"{diversion.path!r} {what} since {_moment(diversion.since)}, "
        f"last heard of at {_moment(diversion.last_event)}{why}"
    )


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _syphon(given: Path | None) -> SyphonState | None:
    """The syphon of this machine; None when there never was one."""
    directory = given or default_state_dir()
    if not directory.is_dir():
        if given is None:
            return None
        raise ConfigurationError(
            f"there is no state directory {str(directory)!r}",
            hint="Give --state as it was given to the syphon",
        )
    from twinbus.spark.syphon.state_directory import StateDir

    state = StateDir(directory)
    return SyphonState(str(directory), state.is_taken, state.control().is_paused)


async def _looked(
    where: PairTarget, options: StatusOptions, syphon: SyphonState | None
) -> tuple[list[Reachability], list[QueueBacklog], list[str]]:
    async with where.opened("primary") as primary, where.opened("secondary") as secondary:
        contacts = list(
            await asyncio.gather(_contact("primary", primary), _contact("secondary", secondary))
        )
        queues: list[QueueBacklog] = []
        attention = [
            f"the {each.role} {'refuses us' if each.answers else 'does not answer'}: {each.says}"
            for each in contacts
            if each.says
        ]
        if contacts[1].answers:
            name = await where.primary_name()
            paths = await queues_of(secondary, name, options.backlog_queue_count)
            manager = NamespaceManager.over(secondary.management, secondary.driver.address)
            search = BacklogSearch(secondary.driver.receiver, name)
            reader = BacklogReader(secondary.driver, manager, paths, search=search)
            queues = await reader.read() if paths else []
            attention += _judged(name, queues)
            if syphon is not None and syphon.is_running and syphon.is_paused:
                attention += _paused(queues, syphon)
            elif contacts[0].answers:
                attention += await _unattended(reader, queues, options.watch_s, syphon)
    return contacts, queues, attention


async def _contact(role: str, namespace: NamespaceConnection) -> Reachability:
    address = str(namespace.driver.address)
    sender = namespace.driver.sender(PROBE_PATH)
    try:
        await sender.attach(timeout_s=CONTACT_TIMEOUT_S)
    except EntityNotFound:
        pass
    except (CommunicationError, OperationTimeout) as error:
        return Reachability(role, address, False, error.sentence.rstrip("."))
    except ServiceError as error:
        return Reachability(role, address, True, error.sentence.rstrip("."))
    finally:
        await sender.close()
    return Reachability(role, address, True)


def _judged(name: str, queues: Sequence[QueueBacklog]) -> list[str]:
    if not queues:
        return [f"there is no backlog queue of {name!r}: run `twinbus pair apply`"]
    told = []
    for each in queues:
        if each.dead_letters:
            found = counted(each.dead_letters, "message")
            told.append(
                f"{found} in the dead-letter queue of {each.queue}: "
                f"run `twinbus dlq show {each.queue} --secondary`"
            )
        if each.percent_full is not None and each.percent_full >= FULL_PERCENT:
            told.append(f"{each.queue} is {each.percent_full:.0f} % full")
        told += [f"{each.queue} could not be looked at: {reason}" for reason in each.unknown]
    return told


def _paused(queues: Sequence[QueueBacklog], syphon: SyphonState) -> list[str]:
    waiting = sum(each.messages or 0 for each in queues)
    if not waiting:
        return []
    return [f"{counted(waiting, 'message')} wait, and the syphon is paused: run {syphon.resume}"]


async def _unattended(
    reader: BacklogReader,
    before: Sequence[QueueBacklog],
    watch_s: float,
    syphon: SyphonState | None,
) -> list[str]:
    """Look a second time, where messages wait and the primary could take them."""
    held = {
        each.queue: each.oldest_sequence_number
        for each in before
        if each.oldest_sequence_number is not None
    }
    if not held or not watch_s:
        return []
    await asyncio.sleep(watch_s)
    after = await reader.read()
    stuck = [each for each in after if held.get(each.queue, -1) == each.oldest_sequence_number]
    if not stuck:
        return []
    waiting = sum(each.messages or 1 for each in stuck)
    where = counted(len(stuck), "backlog queue")
    nobody = f"nobody received the oldest in {watch_s:g} s"
    then = f"; it is paused until {syphon.resume}" if syphon and syphon.is_paused else ""
    return [f"{counted(waiting, 'message')} in {where}, and {nobody}: run `twinbus syphon`{then}"]


def run_preflight(where: PairTarget, options: PreflightOptions) -> bool:
    """Check the pair and show the findings; whether it is ready."""
    report = run_checks(asyncio.run(_observed(where, options)))
    if options.output == "table":
        _show(report)
    else:
        show_json(report.to_json(), options.output)
    return report.is_ready


async def _observed(where: PairTarget, options: PreflightOptions) -> Observations:
    expectation = ExpectedLoad(
        expected_outage_s=options.expected_outage_s,
        rate_per_s=options.rate_per_s,
        message_bytes=options.message_bytes,
        backlog_queue_count=options.backlog_queue_count,
        has_syphon=options.has_syphon,
        allow_lossy=options.allow_lossy,
    )
    async with where.opened("primary") as primary, where.opened("secondary") as secondary:
        return await collect_observations(
            _ends(primary),
            _ends(secondary),
            expectation=expectation,
            primary_name=where.primary_name_given,
            entities=options.entities,
            may_ping=options.may_ping,
            timeout_s=options.timeout_s,
        )


def _ends(namespace: NamespaceConnection) -> NamespaceAccess:
    return NamespaceAccess(namespace.driver, namespace.management)


def _show(report: Report) -> None:
    for each in report.findings:
        fix = f"to do: {each.fix}" if each.fix else ""
        show_block(each.severity.word, (f"{each.check}: {each.subject}", each.summary, fix))
    problems = counted(report.count(Severity.PROBLEM), "problem")
    warnings = counted(report.count(Severity.WARNING), "warning")
    typer.echo(f"{'ready' if report.is_ready else 'not ready'}: {problems}, {warnings}")
