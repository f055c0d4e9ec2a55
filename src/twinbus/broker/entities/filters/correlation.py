"""Correlation filters as closures: a few comparisons for equality, all of which must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twinbus.broker.entities.filters.guard import Prefilter, guard_on
from twinbus.broker.entities.filters.message_view import MessageView
from twinbus.broker.entities.filters.rule_description import SYSTEM_CONDITIONS, CorrelationFilter
from twinbus.broker.entities.filters.values import equal, plain

_SYSTEM_NAMES: Final = {name: name.replace("_", "") for name in SYSTEM_CONDITIONS}


def compile_correlation(
    described: CorrelationFilter,
) -> tuple[Callable[[MessageView], bool | None], list[Prefilter]]:
    """Whether a message matches, and one guard for each condition."""
    system = [
        (folded, getattr(described, name))
        for name, folded in _SYSTEM_NAMES.items()
        if getattr(described, name) is not None
    ]
    user = [(name.lower(), plain(value)) for name, value in described.properties.items()]

    def matches(message: MessageView) -> bool:
        return _all_equal(message.system, system) and _all_equal(message.user, user)

    def matches_user(message: MessageView) -> bool:
        return _all_equal(message.user, user)

    guards = [guard_on(True, name, (value,)) for name, value in system]
    guards += [guard_on(False, name, (value,)) for name, value in user]
    return (matches if system else matches_user), guards


def _all_equal(properties: dict[str, Any], conditions: list[tuple[str, Any]]) -> bool:
    # None, for unknown, is no match; what is missing is unknown.
    return all(equal(properties.get(name), value) for name, value in conditions)
