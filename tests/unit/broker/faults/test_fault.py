"""A fault as a value: what is accepted, what is refused and with which sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.faults import KINDS, Fault, Scope
from twinbus.broker.faults.fault import RANGES
from twinbus.broker.faults.registry import Subsystems, default_subsystem
from twinbus.errors import ConfigurationError, TwinbusError

# The least that each kind needs.
LEAST: dict[str, Scope] = {
    kind: Scope(subsystem="billing") if KINDS[kind].needs_subsystem else Scope() for kind in KINDS
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_survives_json(kind: str) -> None:
    """F1: what is sent to a broker is what it switches on, for every kind."""
    fault = Fault(kind, LEAST[kind], lasts_s=30, seed=7, id="mine", starts_after_s=1.5)
    assert Fault.from_json(json.loads(json.dumps(fault.to_json()))) == fault


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_kind_can_be_set(kind: str) -> None:
    for option, usual in KINDS[kind].options.items():
        chosen: Any = usual
        if isinstance(usual, tuple):
            chosen = usual[-1]
        elif option in RANGES:
            chosen = 502 if option == "http_status" else 0.5
            chosen = 5.0 if option == "bytes_per_s" else chosen
        elif usual is None:
            chosen = "127.0.0.1"
        assert getattr(Fault(kind, LEAST[kind], **{option: chosen}), option) == chosen


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "cannot-fly"}, "'cannot-fly'. Use one of: cannot-send, "),
        ({"kind": 7}, "kind"),
        ([], "JSON object"),
        ({}, "JSON object"),
        ({"kind": "cannot-send", "colour": 1}, "option 'colour'. Use one of: applied_prob"),
        ({"kind": "cannot-send", "latency_ms": 1}, "option 'latency_ms'"),
        ({"kind": "cannot-send", "how": "slowly"}, "'slowly'. Use one of: error, timeout"),
        ({"kind": "throttle", "probability": 1.5}, "probability of fault 'throttle': 1.5"),
        ({"kind": "throttle", "probability": "1"}, "probability of fault 'throttle': '1'"),
        ({"kind": "throttle", "probability": True}, "probability of fault 'throttle': True"),
        ({"kind": "throttle", "probability": float("nan")}, "probability of fault 'throttle': nan"),
        ({"kind": "delayed-visibility", "delay_s": 901}, "Use a number from 0 to 900"),
        ({"kind": "lock-loss", "lasts_s": -1}, "lasts_s of fault 'lock-loss': -1"),
        ({"kind": "throttle", "seed": 1.5}, "seed of fault 'throttle': 1.5"),
        ({"kind": "throttle", "id": "x" * 65}, "at most 64 characters, got 65"),
        ({"kind": "throttle", "id": "a\nb"}, "id must be printable text"),
        ({"kind": "disk-full", "scope": {"entity": "orders"}}, "the whole namespace"),
        ({"kind": "crash-subsystem"}, "Set scope.subsystem"),
        ({"kind": "throttle", "scope": {"partition": 3}}, "Set scope.entity"),
        ({"kind": "throttle", "scope": {"entity": "a", "partition": 16}}, "from 0 to 15"),
        ({"kind": "throttle", "scope": {"entity": "a", "partition": True}}, "from 0 to 15"),
        ({"kind": "throttle", "scope": {"entity": "a", "partition": "3"}}, "from 0 to 15"),
        ({"kind": "throttle", "scope": {"entity": 3}}, "scope.entity must be printable text"),
        ({"kind": "throttle", "scope": {"entity": "a b"}}, "has an invalid character"),
        ({"kind": "throttle", "scope": {"entity": "a*b*"}}, "has an invalid character"),
        ({"kind": "throttle", "scope": ["orders"]}, "JSON object"),
        ({"kind": "throttle", "scope": {"queue": "a"}}, "entity, partition, subsystem"),
        (
            {"kind": "detach", "scope": {"entity": "a", "subsystem": "b"}},
            "an entity or a subsystem",
        ),
        (
            {"kind": "detach", "scope": {"entity": "a", "partition": 1}},
            "'detach' cannot be limited to a partition",
        ),
        (
            {"kind": "cannot-receive", "how": "timeout", "probability": 0.5},
            "probability 1, got 0.5",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Fault.from_json(values)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ).flatmap(
        lambda value: st.fixed_dictionaries(
            {"kind": st.sampled_from(list(KINDS))},
            optional={
                name: st.just(value)
                for name in ("how", "scope", "seed", "probability", "id", "only_clients", "delay_s")
            },
        )
    )
)
def test_any_json_is_a_fault_or_a_refusal(values: dict[str, Any]) -> None:
    try:
        fault = Fault.from_json(values)
    except TwinbusError:
        return
    assert Fault.from_json(fault.to_json()) == fault


@pytest.mark.parametrize(
    ("scope", "path", "is_covered"),
    [
        (Scope(), "orders", True),
        (Scope(entity="Orders"), "orders", True),
        (Scope(entity="orders"), "orders/subscriptions/a", False),
        (Scope(entity="orders*"), "orders/subscriptions/a", True),
        (Scope(entity="orders/*"), "orders", False),
        (Scope(entity="*"), "anything", True),
        (Scope(entity="orders"), "orders2", False),
        (Scope(subsystem="billing"), "orders", True),
        (Scope(subsystem="other"), "orders", False),
    ],
)
def test_a_scope_covers_what_it_names(scope: Scope, path: str, is_covered: bool) -> None:
    assert scope.covers(path, "billing") is is_covered


def test_an_entity_is_always_in_the_same_subsystem_unless_it_is_assigned() -> None:
    """F4: entities belong to named subsystems."""
    subsystems = Subsystems()
    assert subsystems.of("orders") == default_subsystem("orders") == "subsystem-2"
    assert {default_subsystem(f"queue-{n}") for n in range(100)} == {
        f"subsystem-{n}" for n in range(4)
    }

    subsystems.assign("Orders", "billing")
    assert subsystems.of("orders") == "billing"
    subsystems.assign("orders", None)
    assert subsystems.of("orders") == "subsystem-2"
    with pytest.raises(ConfigurationError):
        subsystems.assign("orders", "\n")
