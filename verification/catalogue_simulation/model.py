"""What the calls that succeeded must have led to: paths, properties and rules, and nothing else.

It knows none of the broker's planning. It does not decide whether a call is refused either: it is
told which calls succeeded, and says what there must be then.
"""

from __future__ import annotations

from typing import Any

from twinbus.broker.engine.descriptions import QueueDescription
from twinbus.broker.engine.filters import RuleDescription, default_rule

Known = tuple[str, dict[str, Any], dict[str, object]]
"""A kind, properties, and rules as what they filter by, by name."""


_FORWARDS = ("forward_to", "forward_dead_lettered_messages_to")
_SAID: dict[int, tuple[QueueDescription, dict[str, Any]]] = {}


def properties(description: QueueDescription) -> dict[str, Any]:
    """What a description says, without the times that the broker sets.

    A description never changes, and most are looked at many times.
    """
    known = _SAID.get(id(description))
    if known is not None and known[0] is description:
        return known[1]
    values = description.to_public_dict()
    del values["created_at_ms"], values["updated_at_ms"]
    if len(_SAID) > 1_000:
        _SAID.clear()
    _SAID[id(description)] = (description, values)
    return values


def told(rule: RuleDescription) -> object:
    return repr((rule.filter, rule.action))


class Model:
    """The catalogue as it must be."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}

    def create(
        self, description: QueueDescription, rules: list[RuleDescription] | None = None
    ) -> None:
        named: dict[str, object] = {}
        if description.kind == "subscription":
            wanted = [default_rule(0)] if rules is None else rules
            named = {rule.key: told(rule) for rule in wanted}
        self.known[description.path] = (description.kind, properties(description), named)

    def provide(self, *descriptions: QueueDescription) -> None:
        for description in descriptions:
            if description.path not in self.known:
                self.create(description)

    def update(self, description: QueueDescription) -> None:
        if description.path in self.known:
            kind, _values, rules = self.known[description.path]
            self.known[description.path] = (kind, properties(description), rules)

    def delete(self, path: str) -> None:
        self.known.pop(path, None)
        for below in [each for each in self.known if each.startswith(f"{path}/subscriptions/")]:
            del self.known[below]
        for each, (kind, values, rules) in list(self.known.items()):
            ended = {name: None for name in _FORWARDS if values[name] == path}
            if ended:
                self.known[each] = (kind, {**values, **ended}, rules)

    def reset(self, *, keep_entities: bool) -> None:
        if not keep_entities:
            self.known.clear()

    def put_rule(self, path: str, rule: RuleDescription) -> None:
        if path in self.known:
            self.known[path][2][rule.key] = told(rule)

    def remove_rule(self, path: str, name: str) -> None:
        if path in self.known:
            self.known[path][2].pop(name.lower(), None)
