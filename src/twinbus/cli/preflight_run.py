"""Does what ``twinbus preflight`` was asked for: looks, judges, renders."""

from __future__ import annotations

import asyncio

import typer

from twinbus.cli.connecting import PairTarget
from twinbus.cli.preflight import PreflightOptions
from twinbus.cli.showing import counted, show_json
from twinbus.cli.tables import show_block
from twinbus.pairing.open_namespace import NamespaceConnection
from twinbus.pairing.preflight import (
    ExpectedLoad,
    NamespaceAccess,
    Observations,
    Report,
    Severity,
    collect_observations,
    run_checks,
)

__all__ = ["run_preflight"]


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
        show_block(each.severity.word, (f"{each.check}: {each.subject}", each.says, fix))
    problems = counted(report.count(Severity.PROBLEM), "problem")
    warnings = counted(report.count(Severity.WARNING), "warning")
    typer.echo(f"{'ready' if report.is_ready else 'not ready'}: {problems}, {warnings}")
