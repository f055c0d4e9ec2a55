"""Does what ``twinbus preflight`` was asked for: looks, judges, renders."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping

import typer

from twinbus.cli.output import counted
from twinbus.cli.preflight import PreflightOptions
from twinbus.cli.tables import show_table
from twinbus.pairing.environment import Role, variables_of
from twinbus.pairing.open_namespace import (
    OpenNamespace,
    namespace_named_in,
    opened_namespace,
)
from twinbus.pairing.preflight import Ends, Expectation, Facts, Report, Severity, judge, observe

__all__ = ["run_preflight"]


def run_preflight(options: PreflightOptions) -> bool:
    """Check the pair and show the findings; whether it is ready."""
    report = judge(asyncio.run(_observed(options)))
    if options.output == "json":
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _show(report)
    return report.is_ready


async def _observed(options: PreflightOptions) -> Facts:
    expectation = Expectation(
        expected_outage_s=options.expected_outage_s,
        rate_per_s=options.rate_per_s,
        message_bytes=options.message_bytes,
        backlog_queue_count=options.backlog_queue_count,
        has_syphon=options.has_syphon,
    )
    async with (
        opened_namespace(
            namespace_named_in(_environment("primary", options.primary), "primary"),
            ca_file=options.ca_file,
            management_port=options.primary_management_port,
        ) as primary,
        opened_namespace(
            namespace_named_in(_environment("secondary", options.secondary), "secondary"),
            ca_file=options.ca_file,
            management_port=options.secondary_management_port,
        ) as secondary,
    ):
        return await observe(
            _ends(primary),
            _ends(secondary),
            expectation=expectation,
            primary_name=options.primary_name,
            entities=options.entities,
            may_ping=options.may_ping,
            timeout_s=options.timeout_s,
        )


def _environment(role: Role, given: str | None) -> Mapping[str, str]:
    """What was given on the command line counts alone."""
    return os.environ if given is None else {variables_of(role)[0]: given}


def _ends(namespace: OpenNamespace) -> Ends:
    return Ends(namespace.driver, namespace.management)


def _show(report: Report) -> None:
    show_table(
        ("", "check", "where", "seen", "what to do"),
        [
            (each.severity.word, each.check, each.subject, each.says, each.fix)
            for each in report.findings
        ],
    )
    problems = counted(report.count(Severity.PROBLEM), "problem")
    warnings = counted(report.count(Severity.WARNING), "warning")
    typer.echo(f"{'ready' if report.is_ready else 'not ready'}: {problems}, {warnings}")
