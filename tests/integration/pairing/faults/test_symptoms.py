"""The four symptoms of a failing primary, and a datacenter that is gone, through both drivers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.faults.switchboard import Switchboard
from tests.integration.pairing.faults.scene import BRIEF_S, HOME, SEND_TIMEOUT_S, Scene
from tests.support.broker_process import BrokerProcess
from twinbus.common.connection_string import parse_connection_string
from twinbus.errors import AuthenticationFailed
from twinbus.failover.events import Diverted, PingFailed, PingRefused

# The first ping is sent at once, not an interval of one second later.
AT_ONCE_S = 0.5


async def goes_round_and_comes_back(
    scene: Scene, faults: Switchboard, kind: str, timeout_s: float, **options: Any
) -> None:
    """The whole story of one entity: well, away, well again."""
    assert await scene.send("before") is None
    with faults.on(kind, **options):
        # When the primary fails, the very send that finds out is acknowledged
        assert await scene.send("during-1", timeout_s=timeout_s) is None
        assert scene.is_diverted
        assert await scene.send("during-2") is None
    await scene.until_restored()
    assert await scene.send("after") is None

    # Then every message is in one place, or announced to be in two
    assert scene.first_ping_after_s() < AT_ONCE_S
    home, backlog = await scene.at_home(), await scene.in_backlog()
    assert set(backlog) == {"during-1", "during-2"}
    assert {"before", "after"} <= set(home) <= {"before", "after", "during-1"}
    assert set((home + backlog).values()) <= {1, 2}


@pytest.mark.parametrize("how", ["error", "timeout", "detach"])
async def test_a_primary_that_cannot_be_sent_to_is_gone_round(
    scene: Scene, faults: Switchboard, how: str
) -> None:
    """F1 and P10: cannot send."""
    timeout_s = BRIEF_S if how == "timeout" else SEND_TIMEOUT_S
    await goes_round_and_comes_back(
        scene, faults, "cannot-send", timeout_s, entity=scene.queue, how=how
    )


@pytest.mark.parametrize("how", ["refuse", "reset", "black-hole", "half-open"])
async def test_a_primary_that_cannot_be_contacted_is_gone_round(
    scene: Scene, faults: Switchboard, how: str
) -> None:
    """F1 and F5: cannot contact, in all its forms."""
    timeout_s = BRIEF_S if how in ("black-hole", "half-open") else SEND_TIMEOUT_S
    await goes_round_and_comes_back(scene, faults, "cannot-contact", timeout_s, how=how)


def with_rule(broker: BrokerProcess, name: str) -> str:
    """A connection string of the primary with a rule of its own, which may send."""
    rule = broker.admin("PUT", f"/namespaces/{HOME}/rules/{name}", {"claims": ["Send"]})
    return with_key(broker, name, rule["primary_key"])


def with_key(broker: BrokerProcess, name: str, key: str) -> str:
    old = broker.connection_strings[HOME]
    root = parse_connection_string(old)
    text = old.replace(str(root.shared_access_key), key)
    return text.replace(str(root.shared_access_key_name), name)


async def test_a_primary_that_no_longer_knows_the_key_is_gone_round(
    broker: BrokerProcess, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P7: a credential that has worked before in this process and does not work any more."""
    name = f"app-{driver}"
    scene = await Scene(broker, driver, primary=with_rule(broker, name)).open()
    assert await scene.send("before") is None
    assert await scene.schedule("planned-before") > 0
    broker.admin("POST", f"/namespaces/{HOME}/keys/{name}/primary")
    assert await scene.schedule("planned") < 0
    for number in range(3):
        assert await scene.send(f"during-{number}") is None
    assert scene.is_diverted
    home, backlog = await scene.at_home(), await scene.in_backlog()
    assert {"before"} <= set(home) <= {"before", "during-0", "planned-before"}
    assert set(backlog) == {"planned", *(f"during-{number}" for number in range(3))}
    # P23: what the primary answers to the pings is reported, once and loudly
    await scene.until(lambda: len(scene.seen(PingFailed, scene.queue)) >= 3)
    assert [each.refusal for each in scene.seen(PingRefused)] == ["unauthorized"]
    [loud] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "ping-refused" in loud.message and "Give the application a key" in loud.message
    await scene.close()


async def test_an_application_with_the_new_key_goes_straight_to_the_primary(
    broker: BrokerProcess, driver: str
) -> None:
    """P7: what the old key has diverted concerns nobody who has the new one."""
    name = f"restarted-{driver}"
    old = await Scene(broker, driver, primary=with_rule(broker, name)).open()
    assert await old.send("before") is None
    key = broker.admin("POST", f"/namespaces/{HOME}/keys/{name}/primary")["key"]
    assert await old.send("during") is None
    assert old.is_diverted
    new = await Scene(broker, driver, primary=with_key(broker, name, key)).open(old.queue)
    assert await new.send("after") is None
    assert not new.is_diverted
    assert {"before", "after"} <= set(await new.at_home())
    assert set(await old.in_backlog()) == {"during"}
    await old.close()
    await new.close()


async def test_a_key_that_never_worked_diverts_nothing(broker: BrokerProcess, driver: str) -> None:
    """P7: a configuration error is the caller's, who can correct it."""
    wrong = with_key(broker, "RootManageSharedAccessKey", "d3Jvbmc=")
    scene = await Scene(broker, driver, primary=wrong).open()
    assert isinstance(await scene.send("one"), AuthenticationFailed)
    assert not scene.is_diverted and scene.seen(Diverted) == []
    await scene.close()


async def test_messages_go_round_while_only_administration_is_up(
    scene: Scene, faults: Switchboard
) -> None:
    """F5: the data plane is down and management is up."""
    await goes_round_and_comes_back(
        scene, faults, "cannot-contact", SEND_TIMEOUT_S, how="refuse", plane="data"
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("cannot-receive", {"how": "error"}),
        ("cannot-manage", {"how": "error"}),
        ("cannot-manage", {"how": "timeout"}),
        ("cannot-contact", {"how": "gateway-error"}),
        ("cannot-contact", {"how": "refuse", "plane": "management"}),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else value,
)
async def test_what_is_not_about_sending_diverts_nothing(
    scene: Scene, faults: Switchboard, kind: str, options: dict[str, Any]
) -> None:
    """F1, F5 and P0: cannot receive, cannot manage, and management alone down."""
    with faults.on(kind, **options):
        for number in range(3):
            assert await scene.send(f"value-{number}") is None
    assert scene.seen(Diverted) == []
    assert sum((await scene.at_home()).values()) == 3
    assert not await scene.in_backlog()


async def test_only_the_failing_entity_is_diverted(
    scene: Scene, faults: Switchboard, broker: BrokerProcess
) -> None:
    """P6: failover is per entity."""
    other = broker.fresh_queue()
    with faults.on("cannot-send", scene.queue):
        assert await scene.send("away") is None
        assert await scene.send("home", queue=other) is None
    assert set(await scene.at_home(other)) == {"home"}
    assert set(await scene.in_backlog()) == {"away"}


async def test_a_client_that_is_cut_off_goes_round_and_the_others_stay(
    scene: Scene, faults: Switchboard, broker: BrokerProcess, driver: str
) -> None:
    """F5: only this client is cut off; both streams of messages are accepted."""
    kinds = {"amqp": "twinbus-", "servicebus": "SBSender-"}
    other = Scene(broker, next(each for each in kinds if each != driver))
    await other.open(scene.queue)
    try:
        assert await scene.send("before") is None
        assert await other.send("theirs-1") is None
        with faults.on("cannot-contact", how="reset", only_clients=kinds[driver]):
            assert await scene.send("ours") is None
            assert scene.is_diverted
            assert await other.send("theirs-2") is None
            assert not other.is_diverted
        await scene.until_restored()
        assert set(await scene.in_backlog()) == {"ours"}
        assert {"before", "theirs-1", "theirs-2"} <= set(await scene.at_home())
    finally:
        await other.close()


async def test_a_primary_whose_name_leads_nowhere_is_gone_round_from_the_start(
    broker: BrokerProcess, driver: str
) -> None:
    """F5, P17: DNS fails, also for a process that starts during the outage."""
    parsed = parse_connection_string(broker.connection_strings[HOME])
    nowhere = parsed.to_text().replace(parsed.host, "primary.invalid", 1)
    scene = Scene(broker, driver, primary=nowhere)
    await scene.open()
    try:
        assert await scene.send("value") is None
        assert scene.is_diverted
        assert set(await scene.in_backlog()) == {"value"}
    finally:
        await scene.close()


async def test_with_both_namespaces_gone_the_caller_is_told(
    scene: Scene, faults: Switchboard, faults_away: Switchboard
) -> None:
    """P9 and P10: an error only if the message is in neither place."""
    with (
        faults.on("cannot-contact", how="refuse"),
        faults_away.on("cannot-contact", how="refuse"),
    ):
        error = await scene.send("value", timeout_s=BRIEF_S)
    assert error is not None
    assert not await scene.in_backlog() and not await scene.at_home()


async def test_sends_to_a_deleted_entity_are_not_accepted_in_silence(
    scene: Scene, faults: Switchboard, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """P23: an entity that was deleted while it was diverted is an event and an error in the log."""
    with faults.on("cannot-send", entity=scene.queue, how="error"):
        assert await scene.send("during") is None
        broker.admin("DELETE", f"/namespaces/{HOME}/queues/{scene.queue}")
    await scene.until(lambda: len(scene.seen(PingFailed, scene.queue)) >= 3)
    [refused] = scene.seen(PingRefused, scene.queue)
    assert refused.refusal == "not found"
    warnings = [each for each in caplog.records if "ping-refused" in each.getMessage()]
    assert [each.levelname for each in warnings] == ["ERROR"]
    health = scene.primary.health(scene.queue)
    assert health.is_diverted and "EntityNotFound" in health.last_ping_error
    assert await scene.send("later") is None
    assert set(await scene.in_backlog()) == {"during", "later"}
