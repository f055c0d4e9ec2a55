"""Connection strings: one reading or a refusal that keeps the secrets."""

from __future__ import annotations

import warnings

import pytest
from azure.servicebus import parse_connection_string as parse_with_the_sdk
from hypothesis import given
from hypothesis import strategies as st

from twinbus.common.connection_string import ConnectionString, parse_connection_string
from twinbus.errors import ConnectionStringError

KEY = "c2VjcmV0LWtleS13aXRoLXBhZGRpbmctYW5kLWVxdWFscw=="
CREDENTIAL = f"SharedAccessKeyName=root;SharedAccessKey={KEY}"


def refusal(text: str, **arguments: str) -> ConnectionStringError:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ConnectionStringError) as refused:
            parse_connection_string(text, **arguments)
    return refused.value


def test_a_string_of_azure_is_read() -> None:
    parsed = parse_connection_string(
        f"Endpoint=sb://NS.servicebus.windows.net/;{CREDENTIAL};EntityPath=Orders"
    )
    assert parsed.host == "ns.servicebus.windows.net"
    assert parsed.shared_access_key_name == "root"
    assert parsed.shared_access_key == KEY
    assert parsed.entity_path == "Orders"
    assert parsed.uses_tls and parsed.effective_port == 5671
    assert not parsed.is_loopback


def test_a_string_of_an_emulator_is_read() -> None:
    parsed = parse_connection_string(
        f" endpoint=sb://localhost:5673;{CREDENTIAL};UseDevelopmentEmulator=true; "
    )
    assert (parsed.port, parsed.effective_port) == (5673, 5673)
    assert not parsed.uses_tls
    assert parsed.is_loopback


def test_a_signature_takes_the_place_of_a_key() -> None:
    signature = "SharedAccessSignature sr=x&sig=y%3D&se=1&skn=root"
    parsed = parse_connection_string(f"Endpoint=sb://h;SharedAccessSignature={signature}")
    assert parsed.shared_access_signature == signature
    assert parsed.shared_access_key is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("", None, id="1 empty"),
        pytest.param(" ; ;; ", None, id="1 only semicolons"),
        pytest.param(CREDENTIAL, "Endpoint", id="2 no endpoint"),
        pytest.param(f"Endpoint=;{CREDENTIAL}", "Endpoint", id="2 blank endpoint"),
        pytest.param(f"Endpoint=http://h;{CREDENTIAL}", "Endpoint", id="3 http"),
        pytest.param(f"Endpoint=file:///etc/x;{CREDENTIAL}", "Endpoint", id="3 file"),
        pytest.param(f"Endpoint=ldap://h;{CREDENTIAL}", "Endpoint", id="3 ldap"),
        pytest.param(f"Endpoint=h;{CREDENTIAL}", "Endpoint", id="3 no scheme"),
        pytest.param(
            f"Endpoint=sb://h;{CREDENTIAL};SharedAccessKey=b", "SharedAccessKey", id="4 twice"
        ),
        pytest.param(
            f"Endpoint=sb://h;{CREDENTIAL};ENDPOINT=sb://i", "Endpoint", id="4 twice, other case"
        ),
        pytest.param(
            "Endpoint=sb://h;SharedAccessKeyName=root;SharedAccessKey=a\r\nb",
            "SharedAccessKey",
            id="6 line feed",
        ),
        pytest.param(
            "Endpoint=sb://h;SharedAccessKeyName=root;SharedAccessKey=a;b", None, id="6 semicolon"
        ),
        pytest.param(
            f"Endpoint=sb://h;{CREDENTIAL};SharedAccessSignature=s", "SharedAccessKey", id="7 both"
        ),
        pytest.param("Endpoint=sb://h", "SharedAccessKeyName", id="7 neither"),
        pytest.param(f"Endpoint=sb://h;SharedAccessKey={KEY}", "SharedAccessKeyName", id="7 half"),
        pytest.param(f"Endpoint=sb://a@evil;{CREDENTIAL}", "Endpoint", id="9 user"),
        pytest.param(f"Endpoint=sb://a:b@evil;{CREDENTIAL}", "Endpoint", id="9 user and password"),
        pytest.param(f"Endpoint=sb://h:0;{CREDENTIAL}", "Endpoint", id="10 port 0"),
        pytest.param(f"Endpoint=sb://h:65536;{CREDENTIAL}", "Endpoint", id="10 port 65536"),
        pytest.param(f"Endpoint=sb://h:abc;{CREDENTIAL}", "Endpoint", id="10 port abc"),
        pytest.param(f"Endpoint=sb://h:;{CREDENTIAL}", "Endpoint", id="10 port missing"),
        pytest.param(f"Endpoint=sb://h:056;{CREDENTIAL}", "Endpoint", id="10 port 056"),
        pytest.param(f"Endpoint=sb://\u0440aypal.com;{CREDENTIAL}", "Endpoint", id="11 homoglyph"),
        pytest.param(f"Endpoint=sb://h\x00.com;{CREDENTIAL}", "Endpoint", id="11 NUL"),
        pytest.param(f"Endpoint=sb://h..com;{CREDENTIAL}", "Endpoint", id="11 empty label"),
        pytest.param(f"Endpoint=sb://;{CREDENTIAL}", "Endpoint", id="11 no host"),
        pytest.param(f"Endpoint=sb://[::zz];{CREDENTIAL}", "Endpoint", id="11 bad IPv6"),
        pytest.param(f"Endpoint=sb://{'a.' * 130}b;{CREDENTIAL}", "Endpoint", id="11 too long"),
        pytest.param(f"Endpoint=sb://h/path;{CREDENTIAL}", "Endpoint", id="a path"),
        pytest.param(f"Endpoint=sb://h;{CREDENTIAL};x={'y' * 1_000_000}", None, id="12 1 MB"),
        pytest.param(f"Endpoint=amqp://far.example;{CREDENTIAL}", "Endpoint", id="14 plain text"),
        pytest.param(
            f"Endpoint=sb://h;{CREDENTIAL};UseDevelopmentEmulator=yes",
            "UseDevelopmentEmulator",
            id="flag",
        ),
        pytest.param(f"Endpoint=sb://h;{CREDENTIAL};EntityPath=a//b", "EntityPath", id="path"),
    ],
)
def test_a_bad_string_is_refused_and_its_secrets_are_kept(text: str, key: str | None) -> None:
    error = refusal(text)
    assert error.key == key
    assert key is None or key in str(error)
    assert KEY not in str(error) and KEY not in repr(error)
    assert isinstance(error, ValueError)


def test_an_unknown_key_is_a_warning_that_does_not_show_its_value() -> None:
    with pytest.warns(UserWarning, match="transporttype") as caught:
        parsed = parse_connection_string(f"Endpoint=sb://h;{CREDENTIAL};TransportType=canary")
    assert parsed.unknown_keys == ("transporttype",)
    assert "canary" not in str(caught[0].message) + repr(parsed)


def test_an_entity_path_must_agree_with_the_argument() -> None:
    """Case 8."""
    text = f"Endpoint=sb://h;{CREDENTIAL};EntityPath=Orders"
    assert parse_connection_string(text, entity_path="orders").entity_path == "Orders"
    assert refusal(text, entity_path="bills").key == "EntityPath"


def test_plain_text_is_for_this_machine_or_for_those_who_say_so() -> None:
    """Case 14."""
    for host in ("localhost", "127.0.0.1", "[::1]", "a.localhost"):
        assert not parse_connection_string(f"Endpoint=amqp://{host};{CREDENTIAL}").uses_tls
    text = f"Endpoint=amqp://far.example;{CREDENTIAL};UseDevelopmentEmulator=true"
    assert not parse_connection_string(text).uses_tls


def test_an_ipv6_address_keeps_its_brackets_in_the_text() -> None:
    parsed = parse_connection_string(f"Endpoint=sb://[::1]:5672;{CREDENTIAL}")
    assert (parsed.host, parsed.endpoint) == ("::1", "sb://[::1]:5672")


@given(
    st.builds(
        ConnectionString,
        host=st.sampled_from(["localhost", "10.0.0.1", "ns.example.net", "::1"]),
        port=st.none() | st.integers(1, 65_535),
        shared_access_key_name=st.just("root"),
        shared_access_key=st.from_regex(r"[A-Za-z0-9+/]{4,44}={0,2}", fullmatch=True),
        entity_path=st.none() | st.just("a/b"),
        use_development_emulator=st.booleans(),
    )
)
def test_what_is_written_reads_the_same(connection_string: ConnectionString) -> None:
    assert parse_connection_string(connection_string.to_text()) == connection_string


def test_the_sdk_reads_what_we_write() -> None:
    """M10: the printed string is for the stock client."""
    ours = ConnectionString(
        host="localhost",
        port=5673,
        shared_access_key_name="root",
        shared_access_key=KEY,
        use_development_emulator=True,
    )
    theirs = parse_with_the_sdk(ours.to_text())
    assert theirs.fully_qualified_namespace == "localhost:5673"
    assert theirs.shared_access_key == KEY


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in (
            text,
            f"Endpoint={text};{CREDENTIAL}",
            f"Endpoint=sb://{text};{CREDENTIAL}",
        ):
            try:
                parse_connection_string(attempt)
            except ConnectionStringError:
                continue


def test_secrets_are_in_no_repr() -> None:
    parsed = parse_connection_string(f"Endpoint=sb://h;{CREDENTIAL}")
    assert KEY not in repr(parsed) and "root" in repr(parsed)
