"""The client that the commands share: the right namespace, and one sentence for every trouble."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from twinbus.cli.shared.admin_client import AdminClient, AdminRefused, AdminUnreachable
from twinbus.errors import ConfigurationError, TwinbusError

NOBODY_LISTENS = "http://127.0.0.1:1"
STRING = "Endpoint=sb://localhost:{port};SharedAccessKeyName=Root;SharedAccessKey={key};"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(None, arguments=("--namespace", "other:0")) as running:
        yield running


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    return f"http://localhost:{broker.admin_port}"


def test_a_connection_string_finds_its_namespace(broker: BrokerProcess, url: str) -> None:
    """M5: by its port; the broker serves two."""
    for name, text in broker.connection_strings.items():
        client = AdminClient.from_options(url, text)
        assert client.namespace == name
        made = client.put(client.in_namespace(f"queues/of-{name}"), {"max_delivery_count": 3})
        assert made["max_delivery_count"] == 3
        assert [each["path"] for each in client.get(client.in_namespace("queues"))] == [
            f"of-{name}"
        ]
        assert client.delete(client.in_namespace(f"queues/of-{name}")) is None


def test_what_the_broker_refuses_is_its_own_sentence(broker: BrokerProcess, url: str) -> None:
    """M5: with the status beside it."""
    client = AdminClient.from_options(url, broker.connection_string)
    with pytest.raises(AdminRefused, match="'missing' not found") as caught:
        client.get(client.in_namespace("queues/missing"))
    assert caught.value.status == 404


def test_a_wrong_key_is_refused_and_never_repeated(broker: BrokerProcess, url: str) -> None:
    """M6: no error holds a secret."""
    secret = "bm90LXRoZS1yaWdodC1rZXktYXQtYWxsLW5vdC1hdC1hbGw="
    text = STRING.format(port=broker.port, key=secret) + "UseDevelopmentEmulator=true"
    client = AdminClient.from_options(url, text)
    with pytest.raises(AdminRefused) as caught:
        client.get(client.in_namespace("queues"))
    assert caught.value.status == 401
    assert secret not in str(caught.value) + repr(client.__dict__)


@pytest.mark.parametrize(
    ("url", "connection_string", "kind"),
    [
        (NOBODY_LISTENS, STRING.format(port=5672, key="key"), AdminUnreachable),
        (NOBODY_LISTENS, None, ConfigurationError),
        (NOBODY_LISTENS, "", ConfigurationError),
        (NOBODY_LISTENS, "nonsense", ConfigurationError),
        ("localhost:5300", STRING.format(port=5672, key="key"), ConfigurationError),
        ("ftp://localhost", STRING.format(port=5672, key="key"), ConfigurationError),
        ("http://host:port", STRING.format(port=5672, key="key"), ConfigurationError),
    ],
)
def test_what_cannot_be_used_gets_a_sentence(
    url: str, connection_string: str | None, kind: type[TwinbusError]
) -> None:
    """M5: before or after the first byte."""
    with pytest.raises(kind):
        AdminClient.from_options(url, connection_string).get("/health")


def test_a_port_of_no_namespace_asks_for_its_name(broker: BrokerProcess, url: str) -> None:
    """M5: the hint says how."""
    text = broker.connection_string.replace(f":{broker.port};", ":9;")
    client = AdminClient.from_options(url, text)
    with pytest.raises(ConfigurationError, match="--namespace"):
        client.in_namespace("queues")


def test_the_commands_work_over_tls_once_they_trust_the_authority(
    broker: BrokerProcess, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M5: with ``--tls-only`` there is no other way; the hint says how."""
    client = AdminClient.from_options(url.replace("http:", "https:"), broker.connection_string)
    with pytest.raises(AdminUnreachable, match="SSL_CERT_FILE"):
        client.get("/health")

    monkeypatch.setenv("SSL_CERT_FILE", str(broker.ca_path))
    assert client.get("/health")["status"] == "ok"
