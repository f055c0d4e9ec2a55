"""Forwards in a ``Config.json``: its operator has every claim, and still names what exists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twinbus.broker import Broker, BrokerOptions, NamespaceSpec
from twinbus.broker.emulator_config import parse_config_json
from twinbus.errors import ConfigurationError


def spec(*queues: dict[str, Any], topics: tuple[dict[str, Any], ...] = ()) -> NamespaceSpec:
    namespace = {"Name": "demo", "Queues": list(queues), "Topics": list(topics)}
    (parsed,) = parse_config_json(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    return NamespaceSpec(
        parsed.name,
        queues=parsed.queues,
        topics=parsed.topics,
        subscriptions=parsed.subscriptions,
    )


def queue(name: str, **properties: str) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


async def test_a_file_needs_no_proof_and_no_order() -> None:
    """M14: who writes it owns the namespace; a target may stand behind its source."""
    subscription = {"Name": "s", "Properties": {"ForwardTo": "b"}, "Rules": []}
    news = {"Name": "news", "Properties": {}, "Subscriptions": [subscription]}
    async with Broker(BrokerOptions()) as broker:
        running = await broker.add_namespace(
            spec(queue("a", ForwardTo="b"), queue("b"), topics=(news,))
        )
        source = running.queue("a")
        assert source is not None and source.description.forward_to == "b"


@pytest.mark.parametrize(
    "host", ["localhost:5672", "127.0.0.1", "demo", "demo.servicebus.windows.net"]
)
def test_a_url_may_name_this_namespace(host: str) -> None:
    """M14: by its own name, or by this machine's."""
    subscription = {"Name": "s", "Properties": {"ForwardTo": f"sb://{host}/B"}, "Rules": []}
    news = {"Name": "news", "Properties": {}, "Subscriptions": [subscription]}
    found = spec(
        queue("a", ForwardDeadLetteredMessagesTo=f"sb://{host}/B"), queue("b"), topics=(news,)
    )
    first = found.queues[0]
    assert not isinstance(first, str) and first.forward_dead_lettered_messages_to == "b"
    assert found.subscriptions[0].description.forward_to == "b"


@pytest.mark.parametrize("host", ["other", "other.servicebus.windows.net", "demo.example"])
@pytest.mark.parametrize("name", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
def test_a_url_of_another_host_is_refused(host: str, name: str) -> None:
    """M14: its path alone could be the name of an entity here that was not meant."""
    properties = {name: f"sb://{host}/b"}
    with pytest.raises(ConfigurationError, match=f"queue 'a' .*{host}"):
        spec(queue("a", **properties), queue("b"))
    subscription = {"Name": "s", "Properties": properties, "Rules": []}
    news = {"Name": "news", "Properties": {}, "Subscriptions": [subscription]}
    with pytest.raises(ConfigurationError, match=f"subscription 's' .*{host}"):
        spec(queue("b"), topics=(news,))


@pytest.mark.parametrize(
    "properties",
    [
        {"ForwardTo": "missing"},
        {"ForwardDeadLetteredMessagesTo": "missing"},
        {"ForwardTo": "a"},
        {"ForwardTo": "b/$deadletterqueue"},
        {"ForwardTo": "../b"},
    ],
)
async def test_a_forward_that_leads_nowhere_is_refused(properties: dict[str, str]) -> None:
    """M3, M14: the namespace is not served with half of its file."""
    async with Broker(BrokerOptions()) as broker:
        with pytest.raises(ConfigurationError):
            await broker.add_namespace(spec(queue("a", **properties), queue("b")))
        assert broker.namespaces == {}
