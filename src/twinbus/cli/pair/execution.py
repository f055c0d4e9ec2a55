"""Runs ``twinbus pair plan``, ``apply`` and ``status``, and ``twinbus preflight``.

Rule 1: a plan follows the same rules as pairing (P4), and changes nothing.
Rule 2: a namespace is reachable if it returns any response, also that a queue does not exist.
Rule 3: if the oldest message of the backlog stays the same, no syphon is receiving (Y7). This is
        normal while the primary is unreachable.
Rule 4: diversions are read from the journals, and the pause of a syphon from its state directory.
        Both are local files; without them nothing is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import typer

from twinbus.cli.pair.backlog_cleanup import find_queue_paths
from twinbus.cli.pair.commands import PreflightOptions
from twinbus.cli.shared.namespace_options import PairTarget
from twinbus.cli.shared.output import plain, plural, show_block, show_json, show_records
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

__all__ = ["StatusOptions", "apply_plan", "run_preflight", "show_plan", "show_status"]

CHANGE_COLUMNS = ("queue", "what", "why")


def show_plan(where: PairTarget, count: int, output: str) -> bool:
    """Print what would be created; True if all queues can be used afterwards."""

    async def check_queues(
        secondary: NamespaceConnection, name: str, owner: str
    ) -> list[dict[str, Any]]:
        async def check_queue(path: str) -> dict[str, Any]:
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
            backlog_paths(name, count), check_queue, concurrency_max=AT_ONCE_MAX
        )

    return _show_rows(asyncio.run(_with_secondary(where, check_queues)), output)


def apply_plan(where: PairTarget, count: int, output: str) -> bool:
    """Create the missing queues; True if all queues can be used."""

    async def create_queues(
        secondary: NamespaceConnection, name: str, owner: str
    ) -> list[dict[str, Any]]:
        manager = NamespaceManager.over(secondary.management, secondary.driver.address)
        done = await provision(
            manager=manager, driver=secondary.driver, primary_name=name, count=count, owner=owner
        )
        return _rows(done)

    return _show_rows(asyncio.run(_with_secondary(where, create_queues)), output)


async def _with_secondary(where: PairTarget, work: Any) -> list[dict[str, Any]]:
    name = await where.primary_name()
    async with where.open("primary") as primary, where.open("secondary") as secondary:
        owner = owner_mark(primary.driver.address, name)
        rows: list[dict[str, Any]] = await work(secondary, name, owner)
    return rows


def _rows(done: Provisioned) -> list[dict[str, Any]]:
    drift: dict[str, list[str]] = {}
    for each in done.drift:
        drift.setdefault(each.path, []).append(f"{each.name} is {each.found}, not {each.wanted}")
    unseen = f"properties unknown: {done.unmanaged}" if done.unmanaged else ""
    return [
        *(_row(path, "created") for path in done.created),
        *(_row(path, "is there", "; ".join(drift.get(path, [])) or unseen) for path in done.found),
        *(_row(each.path, "cannot be used", each.reason) for each in done.missing),
    ]


def _row(queue: str, what: str, why: str = "") -> dict[str, Any]:
    return {"queue": queue, "what": what, "why": why}


def _show_rows(rows: list[dict[str, Any]], output: str) -> bool:
    show_records(rows, output, CHANGE_COLUMNS)
    return not any(each["what"] == "cannot be used" for each in rows)


CONTACT_TIMEOUT_S: Final = 10.0
FULL_PERCENT: Final = 80.0
BACKLOG_COLUMNS: Final = ("queue", "messages", "dead_letters", "oldest_age_s", "percent_full")


@dataclass(frozen=True, slots=True)
class Reachability:
    """Whether a namespace responds."""

    role: str
    address: str
    answers: bool
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """The options of the command."""

    backlog_queue_count: int | None = None
    watch_s: float
    journals: tuple[Path, ...] = ()
    state: Path | None = None
    """The state directory of the syphon; None: the default directory."""


@dataclass(frozen=True, slots=True)
class SyphonState:
    """The state of a syphon, by its state directory."""

    state: str
    is_running: bool
    is_paused: bool

    @property
    def resume(self) -> str:
        """The command that ends the pause."""
        given = "" if Path(self.state) == default_state_dir() else f" --state {self.state}"
        return f"`twinbus syphon resume{given}`"


def show_status(where: PairTarget, options: StatusOptions, output: str) -> bool:
    """Print the status of the pair; True if nothing needs attention."""
    diverted = _read_diversions(options.journals)
    syphon = _read_syphon_state(options.state)
    contacts, queues, attention = asyncio.run(_collect_status(where, options, syphon))
    attention += [_describe_diversion(each) for each in diverted if each.ended is None]
    backlog = [plain(each) for each in queues]
    if output == "table":
        rows = [
            {
                "role": each.role,
                "address": each.address,
                "reachable": each.answers,
                "error": each.says,
            }
            for each in contacts
        ]
        show_records(rows, output, ("role", "address", "reachable", "error"))
        if backlog:
            show_records(backlog, output, BACKLOG_COLUMNS, numbers_from=1)
        for sentence in attention:
            typer.echo(f"Attention: {sentence}")
        typer.echo(_format_backlog(contacts[1], queues))
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


def _format_backlog(secondary: Reachability, queues: Sequence[QueueBacklog]) -> str:
    where = plural(len(queues), "backlog queue")
    known = [each.messages for each in queues if each.messages is not None]
    if not secondary.answers or (queues and not known):
        return "The number of messages in the backlog is unknown"
    rest = f", and {len(queues) - len(known)} could not be read" if len(known) < len(queues) else ""
    return f"{plural(sum(known), 'message')} in {where}{rest}"


def _read_diversions(journals: Sequence[Path]) -> list[Diversion]:
    found: list[Diversion] = []
    for path in journals:
        try:
            found += diversions(read_journal(path))
        except OSError as error:
            raise ConfigurationError(
                f"Cannot read the journal {str(path)!r:.200}: {error.strerror}",
                hint="Use the path in the option journal of the application for --journal",
            ) from error
    return found


def _describe_diversion(diversion: Diversion) -> str:
    what = "has been held on the backlog" if diversion.is_held else "has been diverted"
    why = f": {diversion.reason}" if diversion.reason else ""
    return (
        f"{diversion.path!r} {what} since {_moment(diversion.since)}, "
        f"last event at {_moment(diversion.last_event)}{why}"
    )


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _read_syphon_state(given: Path | None) -> SyphonState | None:
    """The syphon of this machine; None without a state directory."""
    directory = given or default_state_dir()
    if not directory.is_dir():
        if given is None:
            return None
        raise ConfigurationError(
            f"State directory {str(directory)!r} not found",
            hint="Use the --state of the syphon",
        )
    from twinbus.spark.syphon.state_directory import StateDir

    state = StateDir(directory)
    return SyphonState(str(directory), state.is_taken, state.control().is_paused)


async def _collect_status(
    where: PairTarget, options: StatusOptions, syphon: SyphonState | None
) -> tuple[list[Reachability], list[QueueBacklog], list[str]]:
    async with where.open("primary") as primary, where.open("secondary") as secondary:
        contacts = list(
            await asyncio.gather(_contact("primary", primary), _contact("secondary", secondary))
        )
        queues: list[QueueBacklog] = []
        attention = [_describe_failure(each) for each in contacts if each.says]
        if contacts[1].answers:
            name = await where.primary_name()
            paths = await find_queue_paths(secondary, name, options.backlog_queue_count)
            manager = NamespaceManager.over(secondary.management, secondary.driver.address)
            search = BacklogSearch(secondary.driver.receiver, name)
            reader = BacklogReader(secondary.driver, manager, paths, search=search)
            queues = await reader.read() if paths else []
            attention += _find_problems(name, queues)
            if syphon is not None and syphon.is_running and syphon.is_paused:
                attention += _check_paused(queues, syphon)
            elif contacts[0].answers:
                attention += await _check_unattended(reader, queues, options.watch_s, syphon)
    return contacts, queues, attention


def _describe_failure(contact: Reachability) -> str:
    fact = "refused the request" if contact.answers else "is unreachable"
    return f"The {contact.role} {fact}: {contact.says}"


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


def _find_problems(name: str, queues: Sequence[QueueBacklog]) -> list[str]:
    if not queues:
        return [f"No backlog queue of {name!r} found on the secondary: run `twinbus pair apply`"]
    sentences = []
    for each in queues:
        if each.dead_letters:
            found = plural(each.dead_letters, "message")
            sentences.append(
                f"{found} in the dead-letter queue of {each.queue}: "
                f"run `twinbus dlq show {each.queue} --secondary`"
            )
        if each.percent_full is not None and each.percent_full >= FULL_PERCENT:
            sentences.append(f"{each.queue} is {each.percent_full:.0f} % full")
        sentences += [f"{each.queue} could not be read: {reason}" for reason in each.unknown]
    return sentences


def _check_paused(queues: Sequence[QueueBacklog], syphon: SyphonState) -> list[str]:
    waiting = sum(each.messages or 0 for each in queues)
    if not waiting:
        return []
    found = plural(waiting, "message")
    return [f"{found} in the backlog, and the syphon is paused: run {syphon.resume}"]


async def _check_unattended(
    reader: BacklogReader,
    before: Sequence[QueueBacklog],
    watch_s: float,
    syphon: SyphonState | None,
) -> list[str]:
    """Read the backlog a second time, if it has messages and the primary is reachable."""
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
    where = plural(len(stuck), "backlog queue")
    then = f" and {syphon.resume}, because it is paused" if syphon and syphon.is_paused else ""
    found = f"{plural(waiting, 'message')} in {where}"
    unattended = f"no syphon received the oldest in {watch_s:g} s"
    return [f"{found}, and {unattended}: run `twinbus syphon`{then}"]


def run_preflight(where: PairTarget, options: PreflightOptions) -> bool:
    """Check the pair and print the findings; True if it is ready."""
    report = run_checks(asyncio.run(_observe(where, options)))
    if options.output == "table":
        _show(report)
    else:
        show_json(report.to_json(), options.output)
    return report.is_ready


async def _observe(where: PairTarget, options: PreflightOptions) -> Observations:
    expectation = ExpectedLoad(
        expected_outage_s=options.expected_outage_s,
        rate_per_s=options.rate_per_s,
        message_bytes=options.message_bytes,
        backlog_queue_count=options.backlog_queue_count,
        has_syphon=options.has_syphon,
        allow_lossy=options.allow_lossy,
    )
    async with where.open("primary") as primary, where.open("secondary") as secondary:
        return await collect_observations(
            _access(primary),
            _access(secondary),
            expectation=expectation,
            primary_name=where.primary_name_given,
            entities=options.entities,
            may_ping=options.may_ping,
            timeout_s=options.timeout_s,
        )


def _access(namespace: NamespaceConnection) -> NamespaceAccess:
    return NamespaceAccess(namespace.driver, namespace.management)


def _show(report: Report) -> None:
    for each in report.findings:
        fix = f"Fix: {each.fix}" if each.fix else ""
        show_block(each.severity.word, (f"{each.check}: {each.subject}", each.summary, fix))
    problems = plural(report.count(Severity.PROBLEM), "problem")
    warnings = plural(report.count(Severity.WARNING), "warning")
    typer.echo(f"{'Ready' if report.is_ready else 'Not ready'}: {problems}, {warnings}")
