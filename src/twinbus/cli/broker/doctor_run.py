"""Runs ``twinbus doctor`` and prints its report, as sentences or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer

from twinbus.broker.data_repair import DataReport, NamespaceReport, examine_data
from twinbus.broker.storage.repair.findings import Finding
from twinbus.broker.storage.repair.store_repair import Progress
from twinbus.cli.shared.output import plain, plural, show_json

# A terminal shows at most these ranges; --output json has all of them.
RANGES_SHOWN_MAX: Final = 20


def run_doctor(data: Path, into: Path | None, scratch: Path | None, output: str) -> bool:
    """Check, repair if ``into`` is given, and print; True if there is no damage and no loss."""
    with _show_progress(output) as progress:
        report = examine_data(data, into, scratch=scratch, progress=progress)
    if output == "table":
        _show_sentences(report)
    else:
        show_json(_as_record(report), output)
    if report.repaired is not None:
        return report.totals.lost == 0
    return report.is_healthy


@contextmanager
def _show_progress(output: str) -> Iterator[Progress | None]:
    if output != "table" or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda what, count: status.update(f"{what}: {count:,} pages" if count else what)


def _as_record(report: DataReport) -> dict[str, Any]:
    return {
        "data": str(report.data),
        "healthy": report.is_healthy,
        "repaired": None if report.repaired is None else str(report.repaired),
        **_totals(report),
        "findings": [_finding(each) for each in report.findings],
        "namespaces": [_namespace(each) for each in report.namespaces],
    }


def _totals(report: DataReport) -> dict[str, int]:
    totals = report.totals
    return {
        "messages_found": totals.found,
        "messages_lost": totals.lost,
        "messages_repeated": totals.repeated,
    }


def _namespace(each: NamespaceReport) -> dict[str, Any]:
    return {
        "name": each.name,
        "messages_found": each.store.totals.found,
        "messages_lost": each.store.totals.lost,
        "messages_repeated": each.store.totals.repeated,
        "lost": [
            {
                "entity": path,
                "first_sequence_number": lost.first_seq,
                "last_sequence_number": lost.last_seq,
                "all_of_them": lost.is_exact,
            }
            for path, lost in each.lost()
        ],
        "findings": [_finding(finding) for finding in each.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    record = plain(finding)
    assert isinstance(record, dict)
    return record


def _show_sentences(report: DataReport) -> None:
    for finding in report.findings:
        _show_finding(finding)
    for namespace in report.namespaces:
        findings = namespace.findings
        verdict = plural(len(findings), "finding") if findings else "no findings"
        found = plural(namespace.store.totals.found, "message")
        typer.echo(f"Namespace {namespace.name}: {verdict}, {found} checked.")
        for finding in findings:
            _show_finding(finding)
        _show_lost(namespace)
    typer.echo(_verdict(report))


def _show_finding(finding: Finding) -> None:
    where = "" if finding.entity is None else f"{finding.entity}: "
    text = f"  {finding.severity.value}: {where}{finding.sentence} Repair: {finding.repair}"
    # A name in a damaged row may contain control characters of a terminal.
    typer.echo("".join(each if each.isprintable() else "\ufffd" for each in text))


def _show_lost(namespace: NamespaceReport) -> None:
    ranges = list(namespace.lost())
    for path, lost in ranges[:RANGES_SHOWN_MAX]:
        numbers = f"{lost.first_seq:,} to {lost.last_seq:,}"
        within = "sequence numbers" if lost.is_exact else "some of the sequence numbers"
        shown = "".join(each if each.isprintable() else "\ufffd" for each in path)
        typer.echo(f"  lost: {shown}: {within} {numbers}")
    if len(ranges) > RANGES_SHOWN_MAX:
        typer.echo(f"  lost: {plural(len(ranges) - RANGES_SHOWN_MAX, 'more range')}")


def _verdict(report: DataReport) -> str:
    totals = report.totals
    lost = plural(totals.lost, "message")
    repeated = ""
    if totals.repeated:
        repeated = f" {plural(totals.repeated, 'message')} may be repeated."
    if report.repaired is not None:
        return (
            f"Recovered {plural(totals.found, 'message')}, lost {lost}.{repeated} "
            f"The new data directory is {str(report.repaired)!r}; the old one is unchanged.\n"
            f"Next: start the broker with --data {str(report.repaired)!r} and keep the old "
            "directory until the messages are checked."
        )
    if not report.can_repair:
        return "This twinbus cannot repair it; nothing was written."
    if report.is_healthy:
        return "Healthy: the broker opens it."
    return (
        f"A repair recovers {plural(totals.found, 'message')} and loses {lost}.{repeated}\n"
        f"Next: twinbus doctor {str(report.data)!r} --repair"
    )
