"""Which namespaces to serve and what they should have, from the options of ``twinbus serve``.

    --queue orders  --topic east:news  --subscription east:news/all

A name without a namespace is for every namespace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from twinbus.broker.broker import NamespaceSpec
from twinbus.broker.config_json import NamespaceConfig, parse_config_json
from twinbus.broker.config_topics import SubscriptionConfig
from twinbus.broker.entities.description import QueueDescription
from twinbus.broker.entities.topic_description import SubscriptionDescription, TopicDescription
from twinbus.cli.sources import split_subscription
from twinbus.errors import ConfigurationError

DEFAULT_NAMESPACE: Final = "twinbus"
AMQP_PORT: Final = 5672


@dataclass(slots=True)
class NamespaceSpecBuilder:
    """One namespace, while the options are being read."""

    port: int
    queues: list[str | QueueDescription] = field(default_factory=list)
    topics: list[str | TopicDescription] = field(default_factory=list)
    subscriptions: list[SubscriptionConfig] = field(default_factory=list)

    def add(self, entry: NamespaceConfig) -> None:
        self.queues.extend(entry.queues)
        self.topics.extend(entry.topics)
        self.subscriptions.extend(entry.subscriptions)


def namespace_specs(
    names: list[str],
    queues: list[str],
    topics: list[str],
    subscriptions: list[str],
    config: Path | None,
) -> list[NamespaceSpec]:
    """The namespaces that the options name."""
    wanted: dict[str, NamespaceSpecBuilder] = {}
    if config is not None:
        for entry in parse_config_json(_text_of(config)):
            wanted[entry.name] = NamespaceSpecBuilder(AMQP_PORT + len(wanted))
            wanted[entry.name].add(entry)
    for name in names or ([] if wanted else [DEFAULT_NAMESPACE]):
        label, _colon, port = name.partition(":")
        number = parse_port(port, AMQP_PORT + len(wanted))
        wanted.setdefault(label, NamespaceSpecBuilder(number)).port = number
    for name in queues:
        for each, path in _addressed("--queue", name, wanted):
            each.queues.append(path)
    for name in topics:
        for each, path in _addressed("--topic", name, wanted):
            each.topics.append(path)
    for name in subscriptions:
        for each, path in _addressed("--subscription", name, wanted):
            each.subscriptions.append(SubscriptionConfig(_subscription(path)))
    return [
        NamespaceSpec(
            label,
            each.port,
            queues=tuple(each.queues),
            topics=tuple(each.topics),
            subscriptions=tuple(each.subscriptions),
        )
        for label, each in wanted.items()
    ]


def _addressed(
    option: str, name: str, wanted: dict[str, NamespaceSpecBuilder]
) -> list[tuple[NamespaceSpecBuilder, str]]:
    """The namespaces that ``[NAMESPACE:]PATH`` is for, and the path."""
    label, colon, path = name.rpartition(":")
    if colon and label not in wanted:
        raise ConfigurationError(
            f"{option} names the namespace {label!r}, which is not served",
            hint="Add it with --namespace",
        )
    return [(each, path) for each in ([wanted[label]] if colon else wanted.values())]


def _subscription(path: str) -> SubscriptionDescription:
    """``TOPIC/subscriptions/NAME``, as everywhere, or ``TOPIC/NAME``."""
    parts = split_subscription(path)
    topic, slash, name = path.rpartition("/") if parts is None else (parts[0], "/", parts[1])
    if not slash:
        raise ConfigurationError(
            f"--subscription {path!r} does not name its topic",
            hint="Write it as TOPIC/subscriptions/NAME",
        )
    return SubscriptionDescription(path=f"{topic}/subscriptions/{name}")


def parse_port(text: str, default: int) -> int:
    """A port as text; ``default`` for none."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise ConfigurationError(f"{text!r} is not a port", hint="Use a number from 0 to 65535")
    return int(text)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(
            f"{str(path)!r} cannot be read: {reason}", hint="Check the path given with --config"
        ) from error
