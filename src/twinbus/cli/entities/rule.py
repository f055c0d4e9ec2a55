"""``twinbus rule list|show|create|delete|purge``: which messages a subscription gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.entities import commands as of
from twinbus.cli.entities.subscription import Name as Subscription
from twinbus.cli.entities.subscription import Topic
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    confirm,
    counted,
    print_result,
)
from twinbus.cli.shared.values import settings_in
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["rule_app"]

rule_app = of.entity_group("rule", "Rules of subscriptions: list, show, create, delete, purge.")

Rule = Annotated[str, typer.Argument(help="Name of the rule.", metavar="RULE")]
_CORRELATION = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


@rule_app.command("list", cls=of.SubscriptionCommand)
@with_namespace
def list_rules(
    topic: Topic, subscription: Subscription, output: Output = "table", *, where: NamespaceTarget
) -> None:
    """List the rules of a subscription. It gets each message that matches at least one.

    Requires the Manage claim.
    """
    columns = ("name", "filter", "action")
    of.list_entities(where, output, lambda each: each.list_rules(topic, subscription), columns)


@rule_app.command("show", cls=of.SubscriptionCommand)
@with_namespace
def show(
    topic: Topic,
    subscription: Subscription,
    rule: Rule,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Show the filter and action of a rule.

    Requires the Manage claim.
    """
    named = _named(topic, subscription, rule)
    of.show_entity(where, output, named, lambda each: each.get_rule(topic, subscription, rule))


@rule_app.command("create", cls=of.SubscriptionCommand)
@with_namespace
def create(
    topic: Topic,
    subscription: Subscription,
    rule: Rule,
    sql: Annotated[
        str | None,
        typer.Option(
            help="SQL filter, for example \"colour = 'red'\".",
            metavar="TEXT",
        ),
    ] = None,
    equals: Annotated[
        list[str] | None,
        typer.Option(
            help="Correlation filter: value of label, to, message_id, correlation_id, reply_to, "
            "session_id, reply_to_session_id or content_type; repeatable.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    has_property: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            help="Correlation filter: value of an application property; NAME:=3 for a number, "
            "NAME:=true for a boolean; repeatable.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="Match every message.")] = False,
    none: Annotated[bool, typer.Option("--none", help="Match no message.")] = False,
    action: Annotated[
        str | None,
        typer.Option(
            help='SQL action on the copy of the message, for example "SET seen = 1".',
            metavar="TEXT",
        ),
    ] = None,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Create a rule of a subscription.

    A new subscription has the rule $Default, which matches every message: delete it to select
    messages by other rules. Requires the Manage claim.
    """
    from twinbus.drivers.administration import (
        CorrelationRuleFilter,
        NamedRuleFilter,
        RuleProperties,
        SqlRuleFilter,
    )

    chosen = [sql is not None, bool(equals or has_property), every, none]
    if sum(chosen) != 1:
        raise ConfigurationError(
            "A rule must have exactly one filter",
            hint="Use one of --sql, --equals with --property, --every and --none",
        )
    filter_: Any = NamedRuleFilter("FalseFilter" if none else "TrueFilter")
    if sql is not None:
        filter_ = SqlRuleFilter(sql)
    elif equals or has_property:
        conditions = settings_in("--equals", equals or [])
        unknown = [name for name in conditions if name not in _CORRELATION]
        if unknown:
            raise ConfigurationError(
                f"Invalid value for --equals: unknown name {unknown[0]!r:.60}",
                hint=f"Use {', '.join(_CORRELATION)}, or --property",
            )
        texts = {name: str(value) for name, value in conditions.items()}
        filter_ = CorrelationRuleFilter(
            **texts, properties=settings_in("--property", has_property or [])
        )
    wanted = RuleProperties(name=rule, filter=filter_, action=action)
    of.create_entity(
        where,
        output,
        dry_run,
        _named(topic, subscription, rule),
        wanted,
        lambda each: each.create_rule(topic, subscription, wanted),
        lambda each: each.get_rule(topic, subscription, rule),
    )


@rule_app.command("delete", cls=of.SubscriptionCommand)
@with_namespace
def delete(
    topic: Topic,
    subscription: Subscription,
    rule: Rule,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Delete a rule. A subscription without rules gets no messages.

    Requires the Manage claim.
    """
    of.delete_entity(
        where,
        output,
        yes=yes,
        dry_run=dry_run,
        named=_named(topic, subscription, rule),
        get=lambda each: each.get_rule(topic, subscription, rule),
        delete=lambda each: each.delete_rule(topic, subscription, rule),
    )


@rule_app.command("purge", cls=of.SubscriptionCommand)
@with_namespace
def purge(
    topic: Topic,
    subscription: Subscription,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Output = "table",
    *,
    where: NamespaceTarget,
) -> None:
    """Delete all rules of a subscription. It gets no messages until a rule is created.

    Requires the Manage claim.
    """
    check_output_format(output)

    async def names(namespace: NamespaceConnection) -> list[str]:
        rules = namespace.management.list_rules(topic, subscription)
        return [each.name async for each in rules]

    found = run_with_namespace(where, names)
    what = f"{counted(len(found), 'rule')} of subscription {subscription!r} of topic {topic!r}"
    if dry_run:
        print_result(output, {"would_delete": found}, f"{what} would be deleted")
        return
    confirm(yes, f"Permanently delete {what}?", "deletes rules")

    async def delete_them(namespace: NamespaceConnection) -> None:
        for each in found:
            await namespace.management.delete_rule(topic, subscription, each)

    run_with_namespace(where, delete_them)
    print_result(output, {"deleted": found}, f"{what} deleted")


def _named(topic: str, subscription: str, rule: str) -> str:
    return f"rule {rule!r} of subscription {subscription!r} of topic {topic!r}"
