"""Arguments of the wrong type are refused where they are given, in one sentence (P18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import twinbus
from tests.support.pairing.fake_namespace import FakeNamespace
from twinbus import aio
from twinbus.azure import PairedServiceBusClient, Pairing
from twinbus.azure.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from twinbus.errors import ConfigurationError

TEXT = "Endpoint=sb://spare.example;SharedAccessKeyName=root;SharedAccessKey=a2V5"


class Kind:
    """A manager, a factory and options of one kind of program."""

    def __init__(self, module: Any, name: str) -> None:
        self.name = name
        self.manager = module.NamespaceManager.from_connection_string(TEXT)
        self.factory = module.MessagingFactory.from_connection_string(TEXT, driver="amqp")
        self.options: Callable[..., Any] = module.SendAvailabilityPairedNamespaceOptions


KINDS = {"aio": Kind(aio, "twinbus.aio"), "sync": Kind(twinbus, "twinbus")}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def other(kind: Kind) -> Kind:
    return next(each for each in KINDS.values() if each is not kind)


def sentence_of(build: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        build()
    assert "a2V5" not in str(refused.value)
    assert refused.value.hint
    return str(refused.value)


def test_what_is_right_is_taken(kind: Kind) -> None:
    """P18: with a manager and without."""
    for manager in (kind.manager, None):
        assert kind.options(manager, kind.factory).messaging_factory is kind.factory


def test_a_manager_and_a_factory_that_are_exchanged_are_refused(kind: Kind) -> None:
    """P18: when the options are built."""
    told = sentence_of(lambda: kind.options(kind.factory, kind.manager))
    assert f"secondary_namespace_manager must be a {kind.name}.NamespaceManager or None" in told
    assert f"got a {kind.name}.MessagingFactory. Pass the manager first" in told


@pytest.mark.parametrize("given", [None, TEXT, b"x", 5, FakeNamespace()])
def test_what_is_not_a_factory_is_refused(kind: Kind, given: Any) -> None:
    """P18: None, a connection string, a driver."""
    told = sentence_of(lambda: kind.options(kind.manager, given))
    assert f"messaging_factory must be a {kind.name}.MessagingFactory, got" in told
    assert "from_connection_string()" in told


def test_arguments_of_the_other_kind_of_program_are_refused(kind: Kind, other: Kind) -> None:
    """P18: a sync factory in asyncio, and the other way round."""
    told = sentence_of(lambda: kind.options(other.manager, kind.factory))
    assert f"got a {other.name}.NamespaceManager. Import all of them from" in told
    told = sentence_of(lambda: kind.options(None, other.factory))
    assert f"got a {other.name}.MessagingFactory. Import all of them from" in told


async def test_options_of_the_other_kind_of_program_are_refused() -> None:
    """P18: sync options are asyncio's with other partners."""
    sync = KINDS["sync"]
    primary = aio.MessagingFactory.from_driver(FakeNamespace())
    with pytest.raises(ConfigurationError, match=r"got a twinbus\.MessagingFactory"):
        await primary.pair_namespace(sync.options(None, sync.factory))
    with pytest.raises(ConfigurationError, match="got None"):
        await primary.pair_namespace(None)  # type: ignore[arg-type]
    assert not primary.is_paired
    await primary.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classifier", 5),
        ("rotation", None),
        ("thresholds", {}),
        ("syphon", "local"),
        ("journal", 5),
        ("control", b"x"),
        ("on_event", 5),
        ("namespace_name", 5),
        ("journal_keep_days", "x"),
        ("allow_lossy_backlog", None),
    ],
)
def test_every_option_of_a_pair_has_a_type(kind: Kind, name: str, value: Any) -> None:
    """P18: said when the options are built, not when the pair is made."""
    with pytest.raises(ConfigurationError):
        kind.options(None, kind.factory, **{name: value})
    if name != "journal_keep_days":
        with pytest.raises(ConfigurationError):
            Pairing(secondary=TEXT, **{name: value})


@pytest.mark.parametrize(
    "given",
    [
        {"secondary": 5},
        {"secondary": KINDS["aio"].factory},
        {"secondary": "nonsense"},
        {"secondary_fully_qualified_namespace": "h.example"},
        {"secondary_fully_qualified_namespace": "h.example", "secondary_credential": 5},
        {"secondary_fully_qualified_namespace": 5, "secondary_credential": 5},
        {"secondary": TEXT, "secondary_driver": "x"},
        {"secondary": TEXT, "failover_interval": "x"},
        {"secondary": TEXT, "backlog_queue_count": 0},
        {"secondary": TEXT, "operation_timeout": None},
        {"secondary": TEXT, "keep_days": "x"},
    ],
)
def test_what_is_wrong_in_a_pairing_is_refused_when_it_is_built(given: dict[str, Any]) -> None:
    """P18: the drop-in says it before the first send."""
    sentence_of(lambda: Pairing(**given))


@pytest.mark.parametrize("client", [PairedServiceBusClient, AsyncPairedServiceBusClient])
@pytest.mark.parametrize("given", [TEXT, {"secondary": TEXT}, 0])
def test_what_is_not_a_pairing_is_refused(client: Any, given: Any) -> None:
    """P18: a connection string in its place, for instance."""
    with pytest.raises(ConfigurationError, match=r"must be a twinbus\.azure\.Pairing"):
        client.from_connection_string(TEXT, pairing=given)


WRONG: dict[str, Callable[[Any], object]] = {
    "no connection string": lambda m: m.MessagingFactory.from_connection_string(None),
    "bytes": lambda m: m.MessagingFactory.from_connection_string(b"Endpoint=sb://x"),
    "no credential": lambda m: m.MessagingFactory("h.example", None),
    "exchanged": lambda m: m.MessagingFactory(object(), "h.example"),
    "no host": lambda m: m.NamespaceManager(None, None),
    "manager without a credential": lambda m: m.NamespaceManager("h.example", None),
    "manager without a text": lambda m: m.NamespaceManager.from_connection_string(None),
    "no driver": lambda m: m.MessagingFactory.from_driver(None),
    "retries": lambda m: m.MessagingFactory.from_connection_string(TEXT, retry_total=None),
    "back-off": lambda m: m.MessagingFactory.from_connection_string(TEXT, retry_backoff_max="x"),
    "authority": lambda m: m.MessagingFactory.from_connection_string(TEXT, ca_file=5),
    "audit": lambda m: m.MessagingFactory.from_connection_string(TEXT, audit="yes"),
    "listener": lambda m: KINDS["aio"].factory.on_event(None),
    "rate": lambda m: m.SyphonHosting("local", rate_per_s="x"),
    "tasks": lambda m: m.SyphonHosting(tasks=1.5),
    "thresholds": lambda m: m.BacklogThresholds(messages="x"),
    "threshold": lambda m: m.BacklogThresholds(messages=("x",)),
    "rotation": lambda m: m.RotationPolicy(pause_s=None),
    "classifier": lambda m: m.Classifier(5),
}


@pytest.mark.parametrize("build", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("module", [aio, twinbus], ids=["aio", "sync"])
def test_other_arguments_have_types_too(build: Callable[[Any], object], module: Any) -> None:
    """P18: one sentence, and no AttributeError or TypeError of something else."""
    sentence_of(lambda: build(module))
