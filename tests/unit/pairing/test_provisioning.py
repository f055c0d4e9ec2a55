"""Backlog queues, found or made on the secondary."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.access import connection_string_with
from tests.support.answers import assert_well_put
from twinbus.broker.access.rules import Claim
from twinbus.drivers.administration import QueueProperties
from twinbus.drivers.amqp import AmqpDriver
from twinbus.drivers.interface import LinkProperties, NamespaceAddress
from twinbus.errors import (
    AccessRefused,
    AuthenticationFailed,
    CommunicationError,
    ConfigurationError,
    EntityExists,
    EntityNotFound,
    InvalidEntityPath,
    NoBacklogQueue,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceError,
)
from twinbus.pairing.backlog_queues import (
    backlog_paths,
    backlog_queue,
    drift_of,
    primary_name_of,
    unsafe_property,
)
from twinbus.pairing.client.namespace_manager import NamespaceManager
from twinbus.pairing.provisioning import Provisioned, open_links, provision
from twinbus.testing.namespaces import NamespaceFixture

PATHS = backlog_paths("contoso", 3)


# -- names and properties -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "configured", "reported", "name"),
    [
        ("contoso.servicebus.windows.net", None, None, "contoso"),
        ("contoso.servicebus.windows.net", None, "other", "contoso"),
        ("emulator", None, None, "emulator"),
        ("contoso.servicebus.windows.net", "Fabrikam", None, "fabrikam"),
        ("localhost", None, "Demo", "demo"),
        ("127.0.0.1", None, "demo", "demo"),
        ("10.1.2.3", None, "demo", "demo"),
        ("::1", "given", "demo", "given"),
        ("east.localhost", None, "demo", "demo"),
    ],
)
def test_the_primary_s_name(
    host: str, configured: str | None, reported: str | None, name: str
) -> None:
    """P4: the first label; for loopback and bare addresses the namespace's own name."""
    address = NamespaceAddress(host, 5671)
    assert primary_name_of(address, configured=configured, reported=reported) == name


@pytest.mark.parametrize("host", ["localhost", "192.168.0.1", "::1"])
def test_a_name_that_nobody_knows_is_refused(host: str) -> None:
    """P4: refuse when unknown."""
    with pytest.raises(ConfigurationError, match="namespace_name") as caught:
        primary_name_of(NamespaceAddress(host, 5672))
    assert_well_put(str(caught.value))


@pytest.mark.parametrize("name", ["a/b", "", "$x", "a b", "../x"])
def test_a_name_must_be_one_part_of_a_path(name: str) -> None:
    with pytest.raises((ConfigurationError, InvalidEntityPath)):
        primary_name_of(NamespaceAddress("localhost", 5672), configured=name)


def test_what_a_backlog_queue_is_like() -> None:
    """P4: these properties, everything else default."""
    assert PATHS[1] == "contoso/x-servicebus-transfer/1"
    assert backlog_queue(PATHS[1]) == replace(
        QueueProperties(path=PATHS[1]),
        max_size_in_megabytes=5120,
        max_delivery_count=2_147_483_647,
        default_message_time_to_live=None,
        auto_delete_on_idle=None,
        lock_duration=timedelta(minutes=1),
        enable_dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )


def test_drift_names_the_property_and_both_values() -> None:
    """P4: drift is a warning."""
    queue = replace(
        backlog_queue(PATHS[0]),
        max_delivery_count=10,
        auto_delete_on_idle=timedelta(days=1),
        user_metadata="somebody's note",
        max_message_size_in_kilobytes=1024,
    )
    assert [str(each) for each in drift_of(queue)] == [
        f"{PATHS[0]}: max_delivery_count is 10, not 2147483647",
        f"{PATHS[0]}: auto_delete_on_idle is 1 day, 0:00:00, not never",
    ]
    assert drift_of(backlog_queue(PATHS[0])) == ()


@pytest.mark.parametrize(
    ("kilobytes", "drift"),
    [
        ((256, 256, 256), []),
        ((1024, 1024, 1024), []),
        ((256, 64, 256), ["1: max_message_size_in_kilobytes is 64, not 256"]),
        ((64,), ["0: max_message_size_in_kilobytes is 64, not 256"]),
        ((256, 1024), ["0: max_message_size_in_kilobytes is 256, not 1024"]),
        ((None, None), []),
        ((None, 1024), []),
        ((None, 0), []),
    ],
)
async def test_a_queue_that_takes_smaller_messages_than_the_others_drifts(
    kilobytes: tuple[int | None, ...], drift: list[str]
) -> None:
    """P4, P20: the smallest one decides for all of them. Who does not tell does not drift."""
    queues = {
        path: replace(backlog_queue(path), max_message_size_in_kilobytes=size)
        for path, size in zip(PATHS, kilobytes, strict=False)
    }
    found = (await provisioned(Secondary(queues))).drift
    assert [str(each).rpartition("/")[2] for each in found] == drift


async def test_a_queue_that_is_not_used_says_nothing_about_the_others() -> None:
    """P4: only what is used together is compared."""
    queues = {path: backlog_queue(path) for path in PATHS[1:]}
    queues = {p: replace(q, max_message_size_in_kilobytes=256) for p, q in queues.items()}
    large = replace(
        backlog_queue(PATHS[0]), requires_session=True, max_message_size_in_kilobytes=1024
    )
    assert (await provisioned(Secondary({**queues, PATHS[0]: large}))).drift == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requires_duplicate_detection": True}, "duplicate detection"),
        ({"requires_session": True}, "sessions"),
        ({"forward_to": "elsewhere"}, "elsewhere"),
    ],
)
def test_what_would_lose_messages_is_a_danger(change: dict[str, Any], words: str) -> None:
    """P4: refuse only what would lose messages."""
    found = unsafe_property(replace(backlog_queue(PATHS[0]), **change))
    assert found is not None and words in found
    assert unsafe_property(backlog_queue(PATHS[0])) is None


# -- a namespace that misbehaves on request ------------------------------------------------


@dataclass
class Secondary:
    """A manager and a driver in memory, with errors for whoever asks next."""

    queues: dict[str, QueueProperties] = field(default_factory=dict)
    get_errors: list[Exception] = field(default_factory=list)
    create_errors: dict[str, list[Exception]] = field(default_factory=dict)
    attach_errors: dict[str, ServiceError] = field(default_factory=dict)
    closed_count: int = 0
    address: str = "fabrikam.example:5671"

    async def get_queue(self, path: str) -> QueueProperties:
        if self.get_errors:
            raise self.get_errors.pop(0)
        if path not in self.queues:
            raise EntityNotFound("there is none", path=path)
        return self.queues[path]

    async def create_queue(self, queue: QueueProperties) -> QueueProperties:
        errors = self.create_errors.get(queue.path)
        if errors:
            raise errors.pop(0)
        self.queues[queue.path] = queue
        return queue

    def sender(self, path: str) -> Any:
        secondary = self

        class Sender:
            async def attach(self, *, timeout_s: float) -> LinkProperties:
                if path in secondary.attach_errors:
                    raise secondary.attach_errors[path]
                if path not in secondary.queues:
                    raise EntityNotFound("there is none", path=path)
                return LinkProperties(262_144)

            async def close(self) -> None:
                secondary.closed_count += 1

        return Sender()


async def provisioned(secondary: Secondary, *, timeout_s: float = 20.0) -> Provisioned:
    return await provision(
        manager=secondary,
        driver=secondary,  # type: ignore[arg-type]
        primary_name="contoso",
        count=3,
        timeout_s=timeout_s,
        pause_s=0.001,
    )


async def test_missing_queues_are_made_and_existing_ones_used_as_they_are() -> None:
    """P2 and P4: the number really found or created; never altered."""
    found = replace(backlog_queue(PATHS[1]), max_size_in_megabytes=1024)
    extra = backlog_queue("contoso/x-servicebus-transfer/7")
    secondary = Secondary({PATHS[1]: found, extra.path: extra})

    result = await provisioned(secondary)

    assert (result.created, result.found) == ((PATHS[0], PATHS[2]), (PATHS[1],))
    assert result.paths == PATHS and result.missing == ()
    [drift] = result.drift
    assert (drift.path, drift.name, drift.found) == (PATHS[1], "max_size_in_megabytes", "1024")
    assert secondary.queues[PATHS[1]] is found and extra.path in secondary.queues
    assert "max_size_in_megabytes is 1024" in result.warnings()[0]


@pytest.mark.parametrize(
    "lossy",
    [
        {
            "default_message_time_to_live": timedelta(seconds=2),
            "enable_dead_lettering_on_message_expiration": False,
        },
        {"auto_delete_on_idle": timedelta(minutes=5)},
    ],
    ids=["expires", "goes when idle"],
)
async def test_a_queue_that_drops_what_waits_is_used_only_when_that_is_allowed(
    lossy: dict[str, Any],
) -> None:
    """P20: skipped with its reason, unless allow_lossy_backlog says otherwise."""
    queue = replace(backlog_queue(PATHS[0]), **lossy)
    result = await provisioned(Secondary({PATHS[0]: queue}))
    assert result.paths == PATHS[1:] and result.missing[0].path == PATHS[0]
    secondary = Secondary({PATHS[0]: queue})
    allowed = await provision(
        manager=secondary,
        driver=secondary,  # type: ignore[arg-type]
        primary_name="contoso",
        count=3,
        allow_lossy=True,
    )
    assert allowed.paths == PATHS


async def test_a_queue_that_keeps_what_expired_as_a_dead_letter_is_used() -> None:
    """P20: nothing vanishes there."""
    queue = replace(backlog_queue(PATHS[0]), default_message_time_to_live=timedelta(days=1))
    assert (await provisioned(Secondary({PATHS[0]: queue}))).paths == PATHS


# -- ready means ready ----------------------------------------------------------------------


async def test_a_queue_that_the_sending_factory_cannot_open_is_not_counted() -> None:
    """P18: the manager may see what the factory that sends may not use."""
    secondary = Secondary(attach_errors={PATHS[1]: AccessRefused("no Send", path=PATHS[1])})
    made = await provisioned(secondary)
    assert made.paths == PATHS
    ready = await open_links(secondary, made, address="fabrikam")  # type: ignore[arg-type]
    assert ready.paths == (PATHS[0], PATHS[2])
    assert ready.missing[0].path == PATHS[1] and "Send claim" in ready.missing[0].reason


async def test_no_link_at_all_is_an_error_that_names_namespace_claim_and_queue() -> None:
    """P18: from pairing, not from the first diverted send."""
    refused = {path: AccessRefused("no Send", path=path) for path in PATHS}
    secondary = Secondary(attach_errors=refused)
    made = await provisioned(secondary)
    with pytest.raises(AccessRefused, match=r"fabrikam.*Send claim") as caught:
        await open_links(secondary, made, address="fabrikam")  # type: ignore[arg-type]
    assert caught.value.path == PATHS[0]


async def test_a_queue_that_was_just_made_is_asked_again() -> None:
    """P18: a service may need a moment before its other half knows of it."""
    asked: list[str] = []

    class Slow(Secondary):
        def sender(self, path: str) -> Any:
            asked.append(path)
            self.attach_errors = {path: EntityNotFound("not yet")} if asked.count(path) < 2 else {}
            return super().sender(path)

    secondary = Slow()
    made = await provisioned(secondary)
    ready = await open_links(secondary, made, address="x", pause_s=0.001)  # type: ignore[arg-type]
    assert ready.paths == PATHS


async def test_a_queue_that_would_lose_messages_is_not_used() -> None:
    """P4: refuse what would lose messages, and keep the others."""
    deduplicating = replace(backlog_queue(PATHS[0]), requires_duplicate_detection=True)
    result = await provisioned(Secondary({PATHS[0]: deduplicating}))
    assert result.paths == PATHS[1:]
    assert "duplicate detection" in result.missing[0].reason
    assert "not used" in result.warnings()[0]


async def test_a_queue_that_would_lose_messages_is_not_used_when_the_management_falls_silent() -> (
    None
):
    """P4: what is known by then counts, although the others are only attached to."""
    deduplicating = replace(backlog_queue(PATHS[0]), requires_duplicate_detection=True)

    class Fading(Secondary):
        async def get_queue(self, path: str) -> QueueProperties:
            if path != PATHS[0]:
                await asyncio.sleep(60)
            return await super().get_queue(path)

    queues = {path: backlog_queue(path) for path in PATHS} | {PATHS[0]: deduplicating}
    result = await provisioned(Fading(queues), timeout_s=0.4)
    assert result.paths == PATHS[1:] and result.unmanaged is not None
    assert [each.path for each in result.missing] == [PATHS[0]]


async def test_attaching_to_many_silent_queues_ends_in_time() -> None:
    """P1: a pairing does not wait for each group of queues anew."""
    given: list[float] = []

    class Silent(Secondary):
        def sender(self, path: str) -> Any:
            class Sender:
                async def attach(self, *, timeout_s: float) -> LinkProperties:
                    given.append(timeout_s)
                    await asyncio.sleep(timeout_s)
                    raise OperationTimeout("no answer", path=path)

                async def close(self) -> None:
                    pass

            return Sender()

    secondary = Silent(get_errors=[AccessRefused("Manage is missing")])
    with pytest.raises(NoBacklogQueue):
        await provision(
            manager=secondary,
            driver=secondary,  # type: ignore[arg-type]
            primary_name="contoso",
            count=12,
            timeout_s=0.4,
            pause_s=0.001,
        )
    assert len(given) == 12
    # The first four had all the time there was
    assert max(given[4:]) < 0.1


async def test_somebody_else_may_make_the_queue_first() -> None:
    """P4: the race ends well."""
    secondary = Secondary()

    class Racing(Secondary):
        async def create_queue(self, queue: QueueProperties) -> QueueProperties:
            if queue.path not in self.queues:
                self.queues[queue.path] = queue
                raise EntityExists(kind="queue", path=queue.path)
            return await super().create_queue(queue)

    result = await provisioned(Racing(secondary.queues))
    assert result.found == PATHS and result.created == ()


async def test_a_topic_in_the_way_costs_one_queue() -> None:
    exists = [EntityExists(kind="queue", path=PATHS[1]) for _ in range(9)]
    result = await provisioned(Secondary(create_errors={PATHS[1]: exists}))
    assert result.paths == (PATHS[0], PATHS[2])
    assert "is a topic" in result.missing[0].reason


async def test_a_busy_service_is_asked_again() -> None:
    secondary = Secondary(
        get_errors=[ServerBusy("later"), ServerBusy("later")],
        create_errors={PATHS[2]: [CommunicationError("lost")]},
    )
    assert (await provisioned(secondary)).created == PATHS


async def test_partial_success_is_counted() -> None:
    """P2: the number really found or created."""
    full = [QuotaExceeded("the namespace is full") for _ in range(9)]
    result = await provisioned(Secondary(create_errors={PATHS[0]: full, PATHS[2]: full}))
    assert result.paths == (PATHS[1],)
    assert [each.path for each in result.missing] == [PATHS[0], PATHS[2]]
    assert "namespace is full" in str(result.missing[0])


@pytest.mark.parametrize(
    ("kind", "attach_error", "claim"),
    [
        (AccessRefused, AccessRefused("no"), "Send claim"),
        (NoBacklogQueue, EntityNotFound("none"), "Manage claim"),
    ],
)
async def test_without_manage_the_error_names_namespace_claim_and_queue(
    kind: type[Exception], attach_error: ServiceError, claim: str
) -> None:
    """P5, P18: whoever reads it knows where to look."""
    secondary = Secondary(
        get_errors=[AccessRefused("The pair has no namespace manager")],
        attach_errors=dict.fromkeys(PATHS, attach_error),
    )
    with pytest.raises(kind) as caught:
        await provisioned(secondary)
    for words in ("fabrikam.example:5671", claim, PATHS[0]):
        assert words in str(caught.value)
    assert_well_put(str(caught.value))


async def test_nothing_at_all_is_an_error_that_says_why() -> None:
    """P1: no backlog queue possible is raised from pairing."""
    full = {path: [QuotaExceeded("the namespace is full")] for path in PATHS}
    with pytest.raises(
        NoBacklogQueue, match=r"3 backlog queues .* [Tt]he namespace is full"
    ) as caught:
        await provisioned(Secondary(create_errors=full))
    assert isinstance(caught.value.__cause__, QuotaExceeded)
    assert_well_put(str(caught.value))


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [(CommunicationError("lost"), True), (AccessRefused("Manage is missing"), False)],
    ids=["unreachable", "refused"],
)
async def test_queues_that_cannot_be_made_now_may_be_made_later(
    error: ServiceError, is_transient: bool
) -> None:
    """P19: with a management that does not answer nothing is known about the configuration."""
    with pytest.raises(NoBacklogQueue) as caught:
        await provisioned(Secondary(get_errors=[error] * 9))
    assert caught.value.is_transient is is_transient


# -- without Manage -----------------------------------------------------------------------

REFUSED = AccessRefused("the namespace refused to read the queue, which needs the claim Manage")


async def test_with_send_only_the_reachable_queues_count() -> None:
    """P5: attach to each expected queue and count the reachable ones."""
    secondary = Secondary({PATHS[0]: backlog_queue(PATHS[0])}, get_errors=[REFUSED])
    result = await provisioned(secondary)
    assert result.paths == result.found == (PATHS[0],)
    assert result.unmanaged is not None and "claim Manage" in result.unmanaged
    assert result.missing[0].path == PATHS[1] and "Manage claim" in result.missing[0].reason
    assert secondary.closed_count == 3, "nothing stays open"
    assert str(result.unmanaged) in result.warnings()[0]


async def test_with_neither_claim_both_are_named() -> None:
    """P5: which claim is missing where."""
    refusals: dict[str, ServiceError] = {path: AccessRefused("no") for path in PATHS}
    with pytest.raises(AccessRefused) as caught:
        await provisioned(Secondary(get_errors=[REFUSED], attach_errors=refusals))
    for words in ("Send claim", "claim Manage", PATHS[0], "secondary"):
        assert words in str(caught.value)
    assert_well_put(str(caught.value))


async def test_a_wrong_key_comes_under_its_own_name() -> None:
    """P1: bad credentials are raised from pairing."""
    wrong = AuthenticationFailed("the signature is wrong")
    refusals: dict[str, ServiceError] = dict.fromkeys(PATHS, wrong)
    with pytest.raises(AuthenticationFailed):
        await provisioned(Secondary(get_errors=[wrong], attach_errors=refusals))


@pytest.mark.parametrize("error", [CommunicationError("refused"), ServerBusy("busy")])
async def test_a_management_that_is_away_does_not_stop_the_pairing(error: ServiceError) -> None:
    """F5: the data plane is up while management is down."""
    queues = {path: backlog_queue(path) for path in PATHS}
    result = await provisioned(Secondary(queues, get_errors=[error] * 9))
    assert result.paths == PATHS


async def test_a_management_that_never_answers_does_not_stop_the_pairing() -> None:
    """F5: management is a black hole."""

    class Silent(Secondary):
        async def get_queue(self, path: str) -> QueueProperties:
            await asyncio.sleep(60)
            raise AssertionError

    queues = {path: backlog_queue(path) for path in PATHS}
    result = await provisioned(Silent(queues), timeout_s=0.2)
    assert result.paths == PATHS


# -- our broker ---------------------------------------------------------------------------


async def test_a_real_namespace_gets_its_backlog_queues(servicebus: NamespaceFixture) -> None:
    """P4: exactly these properties, as the broker tells them."""
    manager = NamespaceManager.from_connection_string(servicebus.connection_string)

    async def run() -> Provisioned:
        nobody: Any = None
        return await provision(manager=manager, driver=nobody, primary_name="contoso", count=10)

    first, second = await run(), await run()

    assert first.created == second.found == backlog_paths("contoso", 10)
    assert second.drift == () and second.missing == ()
    for path in first.paths:
        made = await manager.get_queue(path)
        assert replace(made, max_message_size_in_kilobytes=None) == backlog_queue(path)


async def test_ten_that_pair_at_once_make_each_queue_once(servicebus: NamespaceFixture) -> None:
    """P4: the race, over real sockets."""
    manager = NamespaceManager.from_connection_string(servicebus.connection_string)
    nobody: Any = None
    results = await asyncio.gather(
        *(
            provision(manager=manager, driver=nobody, primary_name="contoso", count=4)
            for _ in range(10)
        )
    )
    assert all(result.paths == backlog_paths("contoso", 4) for result in results)
    assert sum(len(result.created) for result in results) == 4


async def test_a_sender_finds_the_queues_that_somebody_made(servicebus: NamespaceFixture) -> None:
    """P5: over real sockets, with Send only."""
    for path in PATHS[:2]:
        servicebus.queue(path)
    text = connection_string_with(servicebus, Claim.SEND)
    driver = AmqpDriver.from_connection_string(text)
    manager = NamespaceManager.from_connection_string(text)
    result = await provision(manager=manager, driver=driver, primary_name="contoso", count=3)
    await driver.close()
    assert result.paths == PATHS[:2]
    assert result.unmanaged is not None and "Manage claim" in result.unmanaged
    assert "Manage claim" in result.missing[0].reason


async def test_a_listener_is_told_that_it_cannot_send(servicebus: NamespaceFixture) -> None:
    """P5: which claim is missing where."""
    servicebus.queue(PATHS[0])
    text = connection_string_with(servicebus, Claim.LISTEN)
    driver = AmqpDriver.from_connection_string(text)
    manager = NamespaceManager.from_connection_string(text)
    with pytest.raises(AccessRefused, match="Send claim") as caught:
        await provision(manager=manager, driver=driver, primary_name="contoso", count=1)
    await driver.close()
    assert_well_put(str(caught.value))
