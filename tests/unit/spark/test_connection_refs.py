"""Namespaces by reference: what options say, and that no secret is where it should not be."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from pathlib import Path

import pytest

from twinbus.errors import ConfigurationError, ConnectionStringError
from twinbus.spark import connection_refs
from twinbus.spark.connection_refs import NamespaceRef, RefKind, option_names

CANARY = "canaryKeyThatNobodyMaySee="
SECRET = f"Endpoint=sb://orders.example;SharedAccessKeyName=app;SharedAccessKey={CANARY}"
HERE = "tests.unit.spark.test_connection_refs"


def file_with(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def provided() -> str:
    return SECRET


async def provided_later() -> str:
    return SECRET


class Identity:
    def get_token(self, *_scopes: str) -> None:
        raise NotImplementedError


def provided_pair() -> tuple[str, Identity]:
    return "orders.example", Identity()


def failing() -> str:
    raise RuntimeError(SECRET)


def provided_number() -> int:
    return 7


not_callable = SECRET


# -- options ------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["", "primary"])
def test_options_and_references_are_two_forms_of_one_thing(role: str) -> None:
    whole = NamespaceRef(RefKind.ENV, "ORDERS", "/etc/ca.pem", 5300)
    for ref in (
        whole,
        NamespaceRef.of_env("ORDERS"),
        NamespaceRef.of_file("/run/orders"),
        NamespaceRef(RefKind.PROVIDER, "company.vault:orders"),
        NamespaceRef(RefKind.HOST, "orders.servicebus.windows.net"),
        NamespaceRef(RefKind.RAW, SECRET),
    ):
        assert NamespaceRef.from_options(ref.to_options(role), role=role) == ref
        assert pickle.loads(pickle.dumps(ref)) == ref


def test_options_carry_the_role_of_their_namespace() -> None:
    assert NamespaceRef.of_env("ORDERS").to_options("primary") == {
        "primaryConnectionStringEnv": "ORDERS"
    }
    assert "secondaryCaFile" in option_names("secondary")
    assert "connectionStringFile" in option_names()


def test_the_case_of_an_option_does_not_matter() -> None:
    """Spark hands options on in lower case."""
    assert NamespaceRef.from_options({"CONNECTIONSTRINGENV": "ORDERS", "cafile": "ca.pem"}) == (
        NamespaceRef(RefKind.ENV, "ORDERS", "ca.pem")
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "No option names the namespace"),
        ({"connectionStringEnv": " "}, "No option names the namespace"),
        (
            {"connectionStringEnv": "A", "connectionStringFile": "b"},
            "2 options.*connectionStringEnv, connectionStringFile",
        ),
        ({"credentialProvider": "no colon"}, "package.module:callable"),
        ({"credentialProvider": "a:b:c"}, "package.module:callable"),
        ({"fullyQualifiedNamespace": "sb://x/"}, "host name"),
        ({"connectionStringEnv": "A", "administrationPort": "0"}, "1 to 65535"),
        ({"connectionStringEnv": "A", "administrationPort": "70000"}, "1 to 65535"),
        ({"connectionStringEnv": SECRET}, "instead of a reference"),
        ({"connectionStringFile": SECRET}, "instead of a reference"),
    ],
)
def test_options_that_name_no_namespace_or_two_are_refused(
    options: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        NamespaceRef.from_options(options)
    assert CANARY not in str(caught.value)


def test_a_role_that_is_not_named_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"primary namespace.*primaryConnectionString"):
        NamespaceRef.from_options({"connectionStringEnv": "A"}, role="primary")


def test_a_reference_shows_no_secret() -> None:
    raw = NamespaceRef.from_options({"connectionString": SECRET})
    assert CANARY not in repr(raw) and CANARY not in str(raw) and CANARY not in f"{[raw]}"
    assert "ORDERS" in repr(NamespaceRef.of_env("ORDERS"))


# -- raw secrets --------------------------------------------------------------------------


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> NamespaceRef:
    """As it is read from options beside Spark's driver."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/scratch/blockmgr-driver")
    connection_refs._accept_raw.cache_clear()
    ref = NamespaceRef.from_options({"connectionString": SECRET})
    connection_refs._accept_raw.cache_clear()
    return ref


async def test_a_raw_secret_is_accepted_with_a_warning(
    raw: NamespaceRef, caplog: pytest.LogCaptureFixture
) -> None:
    assert await opened_host(raw) == "orders.example"
    (record,) = [
        each for each in caplog.get_records("setup") if each.name == "twinbus.spark.references"
    ]
    assert "connectionStringFile" in record.getMessage() and CANARY not in record.getMessage()


async def test_a_raw_secret_is_refused_in_another_jvm(
    raw: NamespaceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/scratch/blockmgr-of-an-executor")
    with pytest.raises(ConfigurationError, match="for local masters") as caught:
        await opened_host(pickle.loads(pickle.dumps(raw)))
    assert CANARY not in str(caught.value)


# -- opening ------------------------------------------------------------------------------


async def opened_host(ref: NamespaceRef) -> str:
    async with ref.open() as namespace:
        return namespace.driver.address.host


@pytest.mark.parametrize("provider", ["provided", "provided_later", "provided_pair"])
async def test_a_provider_gives_a_connection_string_or_a_credential(provider: str) -> None:
    ref = NamespaceRef(RefKind.PROVIDER, f"{HERE}:{provider}")
    assert await opened_host(ref) == "orders.example"


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        (f"{HERE}:failing", "failed with RuntimeError"),
        (f"{HERE}:provided_number", "returned a int"),
        (f"{HERE}:not_callable", "not callable"),
        (f"{HERE}:missing", "cannot be imported: AttributeError"),
        ("no.such.module:x", "cannot be imported: ModuleNotFoundError"),
    ],
)
async def test_a_provider_that_fails_is_named_and_its_words_are_not_repeated(
    provider: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        await opened_host(NamespaceRef(RefKind.PROVIDER, provider))
    assert CANARY not in "".join(traceback.format_exception(caught.value))


async def test_a_secret_is_read_when_a_connection_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref = pickle.loads(pickle.dumps(NamespaceRef.of_env("ORDERS_CONNECTION")))
    with pytest.raises(ConfigurationError, match="'ORDERS_CONNECTION' is not set"):
        await opened_host(ref)
    monkeypatch.setenv("ORDERS_CONNECTION", f"  {SECRET}\n")
    assert await opened_host(ref) == "orders.example"


async def test_a_file_is_read_without_its_blanks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_with(tmp_path / "orders", f"\ufeff{SECRET}\r\n\n")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert await opened_host(NamespaceRef.of_file(link)) == "orders.example"
    assert not caplog.records


async def test_a_file_that_others_can_read_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection_refs._warn_of_readers.cache_clear()
    ref = NamespaceRef.of_file(file_with(tmp_path / "orders", SECRET, mode=0o644))
    with caplog.at_level(logging.DEBUG):
        await opened_host(ref)
        await opened_host(ref)
    (record,) = [each for each in caplog.records if each.name == "twinbus.spark.references"]
    assert "chmod 600" in record.getMessage() and CANARY not in record.getMessage()


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "does not contain"), (b"\xff\xfe\x00", "does not contain")],
)
async def test_a_file_without_a_text_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "orders"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=says):
        await opened_host(NamespaceRef.of_file(path))


async def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(ConfigurationError, match=r"not a regular file|cannot be read"):
            await opened_host(NamespaceRef.of_file(path))
    with pytest.raises(ConfigurationError, match="No such file"):
        await opened_host(NamespaceRef.of_file(tmp_path / "missing"))


async def test_a_wrong_connection_string_is_told_by_its_key(tmp_path: Path) -> None:
    path = file_with(tmp_path / "orders", SECRET.replace("SharedAccessKeyName=app;", ""))
    with pytest.raises(ConnectionStringError, match="SharedAccessKeyName") as caught:
        await opened_host(NamespaceRef.of_file(path))
    assert CANARY not in str(caught.value)
