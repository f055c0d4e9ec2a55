"""``twinbus rule list|show|create|delete|purge``: which messages a subscription gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli.entities import commands as entity
from twinbus.cli.entities.subscription import Name as Subscription
from twinbus.cli.entities.subscription import Topic
from twinbus.cli.shared.namespace_options import NamespaceTarget, run_with_namespace, with_namespace
from twinbus.cli.shared.output import (
    DryRun,
    Output,
    Yes,
    check_output_format,
    confirm,
    plural,
    print_result,
)
from twinbus.cli.shared.values import parse_settings
from twinbus.errors import ConfigurationError

if TYPE_CHECKING:
    from twinbus.pairing.client.namespace_connection import NamespaceConnection

__all__ = ["rule_app"]

rule_app = entity.entity_group("rule", "Rules of subscriptions: list, show, create, delete, purge.")

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


_SUBSCRIPTION = (entity.parameter("topic", Topic), entity.parameter("subscription", Subscription))
RULE = entity.EntityKind(
    arguments=(*_SUBSCRIPTION, entity.parameter("rule", Rule)),
    list_arguments=_SUBSCRIPTION,
    columns=("name", "filter", "action"),
    label=lambda topic, subscription, rule: (
        f"rule {rule!r} of subscription {subscription!r} of topic {topic!r}"
    ),
    list_all=lambda client, topic, subscription: client.list_rules(topic, subscription),
    get=lambda client, topic, subscription, rule: client.get_rule(topic, subscription, rule),
    delete=lambda client, topic, subscription, rule: client.delete_rule(topic, subscription, rule),
    list_help="List the rules of a subscription. It gets each message that matches at least one.",
    show_help="Show the filter and action of a rule.",
    delete_help="Delete a rule. A subscription without rules gets no messages.",
    command_class=entity.SubscriptionCommand,
    list_class=entity.SubscriptionCommand,
)
entity.register_list(rule_app, RULE)
entity.register_show(rule_app, RULE)


@rule_app.command("create", cls=entity.SubscriptionCommand)
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
        conditions = parse_settings("--equals", equals or [])
        unknown = [name for name in conditions if name not in _CORRELATION]
        if unknown:
            raise ConfigurationError(
                f"Invalid value for --equals: unknown name {unknown[0]!r:.60}",
                hint=f"Use {', '.join(_CORRELATION)}, or --property",
            )
        texts = {name: str(value) for name, value in conditions.items()}
        filter_ = CorrelationRuleFilter(
            **texts, properties=parse_settings("--property", has_property or [])
        )
    wanted = RuleProperties(name=rule, filter=filter_, action=action)
    entity.create_entity(
        where,
        output,
        dry_run,
        RULE.label(topic, subscription, rule),
        wanted,
        lambda each: each.create_rule(topic, subscription, wanted),
        lambda each: each.get_rule(topic, subscription, rule),
    )


entity.register_delete(rule_app, RULE)


@rule_app.command("purge", cls=entity.SubscriptionCommand)
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
    what = f"{plural(len(found), 'rule')} of subscription {subscription!r} of topic {topic!r}"
    if dry_run:
        print_result(output, {"would_delete": found}, f"{what} would be deleted")
        return
    confirm(yes, f"Permanently delete {what}?", "deletes rules")

    async def delete_them(namespace: NamespaceConnection) -> None:
        for each in found:
            await namespace.management.delete_rule(topic, subscription, each)

    run_with_namespace(where, delete_them)
    print_result(output, {"deleted": found}, f"{what} deleted")
