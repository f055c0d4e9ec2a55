"""The names under which the environment tells where the namespaces are."""

from __future__ import annotations

import pytest

from twinbus.errors import ConfigurationError
from twinbus.pairing.client.environment import Role, read_namespace, variables_of


@pytest.mark.parametrize(
    ("variable", "role"),
    [
        ("SERVICEBUS_CONNECTION_STRING", "primary"),
        ("SERVICEBUS_CONNECTION_STR", "primary"),
        ("SERVICEBUS_SECONDARY_CONNECTION_STRING", "secondary"),
        ("SERVICEBUS_SECONDARY_CONNECTION_STR", "secondary"),
        ("SERVICEBUS_CONNECTION_STRING_SECONDARY", "secondary"),
        ("SERVICEBUS_CONNECTION_STR_SECONDARY", "secondary"),
    ],
)
def test_each_spelling_names_a_connection_string(variable: str, role: Role) -> None:
    found = read_namespace({variable: "Endpoint=sb://x;k=s3cret"}, role)
    assert found is not None
    assert (found.source, found.connection_string) == (variable, "Endpoint=sb://x;k=s3cret")
    assert "s3cret" not in repr(found)
    other: Role = "secondary" if role == "primary" else "primary"
    assert read_namespace({variable: "x"}, other) is None


@pytest.mark.parametrize(
    ("variable", "role"),
    [
        ("SERVICEBUS_FULLY_QUALIFIED_NAMESPACE", "primary"),
        ("SERVICEBUS_SECONDARY_FULLY_QUALIFIED_NAMESPACE", "secondary"),
        ("SERVICEBUS_FULLY_QUALIFIED_NAMESPACE_SECONDARY", "secondary"),
    ],
)
def test_each_spelling_names_a_host(variable: str, role: Role) -> None:
    found = read_namespace({variable: "contoso.servicebus.windows.net"}, role)
    assert found is not None
    assert found.connection_string is None
    assert found.fully_qualified_namespace == "contoso.servicebus.windows.net"


def test_a_connection_string_wins_over_a_host() -> None:
    environment = {
        "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": "x.example",
        "SERVICEBUS_CONNECTION_STR": "Endpoint=sb://x.example",
    }
    found = read_namespace(environment, "primary")
    assert found is not None and found.source == "SERVICEBUS_CONNECTION_STR"


def test_what_is_empty_is_not_set() -> None:
    assert read_namespace({"SERVICEBUS_CONNECTION_STRING": " "}, "primary") is None
    assert read_namespace({}, "secondary") is None


def test_two_spellings_must_agree() -> None:
    environment = {"SERVICEBUS_CONNECTION_STRING": "s3cret", "SERVICEBUS_CONNECTION_STR": "h1dden"}
    with pytest.raises(ConfigurationError, match="different values") as caught:
        read_namespace(environment, "primary")
    assert "s3cret" not in str(caught.value) and "h1dden" not in str(caught.value)
    agreeing = dict.fromkeys(environment, "one")
    assert read_namespace(agreeing, "primary") is not None


def test_hints_name_the_usual_variables() -> None:
    assert variables_of("secondary") == (
        "SERVICEBUS_SECONDARY_CONNECTION_STRING",
        "SERVICEBUS_SECONDARY_FULLY_QUALIFIED_NAMESPACE",
    )
    assert variables_of("primary") == (
        "SERVICEBUS_CONNECTION_STRING",
        "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE",
    )
