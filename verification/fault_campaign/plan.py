"""The entities, the numbers and the addresses of a run.

Every role has an address of its own, on which its lines to both brokers listen, each with the
broker's own port: a token names host and port of the namespace it is for.

    127.9.0.1:P      the primary           127.9.0.1:S      the secondary
    127.9.1.1:P, :S  lines of sender-1     127.9.2.1:P, :S  lines of sender-2, and so on
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from verification.fault_campaign.checker import Rules
from verification.fault_campaign.proxy import CLEAR, Weather

PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
BROKERS: Final = (PRIMARY, SECONDARY)
BROKER_HOST: Final = "127.9.0.1"

TOPIC: Final = "news"
SUBSCRIPTIONS: Final = ("all", "audit")
ONCE: Final = "once"
"""A queue that detects duplicates; its window is longer than any run and any jump of a clock."""
DOOMED: Final = "returns"
"""A queue that is deleted now and then, with everything in it."""
BRIEF: Final = "quotes"
"""A queue in which a message lives for some seconds only."""
QUEUES: Final = ("orders", "bills", "parcels", ONCE, DOOMED, BRIEF)
PROBE: Final = "probe"
"""The prober's own queue."""
PROBE_PAUSE_S: Final = 0.15
"""Between two probes."""
DETECTING: Final = {
    "RequiresDuplicateDetection": True,
    "DuplicateDetectionHistoryTimeWindow": "P1D",
}
BRIEF_S: Final = 4
# What a killed receiver held comes back after this long, so that a run need not wait for it.
LOCK_S: Final = 10
DELIVERIES_MAX: Final = 1_000
# Movers work far from the brokers: what they have sent is on its way for a while, and a kill
# finds them with messages between the two.
MOVER_LATENCY_S: Final = 0.02
MOVING: Final = ("mover", "syphon")
# One is held on the backlog for the whole run, so that movers always have work.
AWAY_SENDERS: Final = ("sender-3",)
SECOND_SYPHON: Final = "syphon-2"
"""Started now and then beside the one on Spark."""
# The official SDK takes a tenth of a millisecond for every message: one sender uses it, and the
# others make up the numbers.
SDK_SENDERS: Final = ("sender-1",)
# Where many send at once, this one is the drop-in for the official SDK.
DROP_IN_SENDERS: Final = ("sender-2",)
# This one has more backlog queues than the syphon was told of, where there are more.
MANY_QUEUES_SENDERS: Final = ("sender-3",)
# Where there is a small backlog queue, it is this one. The others hold a gigabyte.
SMALL_QUEUE: Final = 1
SMALL_QUEUE_MB: Final = 1
TWIN: Final = "twin"
"""An application whose primary has the name of ours and is away for the whole run; and the place
where its messages stay, the backlog queues that it shares with ours."""
# What each kind of process may do at each broker, and no more.
CLAIMS: Final = {
    "sender": {PRIMARY: ["Send"], SECONDARY: ["Send", "Listen", "Manage"]},
    "receiver": {PRIMARY: ["Listen"]},
    "mover": {PRIMARY: ["Send"], SECONDARY: ["Listen"]},
    "syphon": {PRIMARY: ["Send"], SECONDARY: ["Listen"]},
    "prober": {PRIMARY: ["Send", "Listen"]},
    TWIN: {SECONDARY: ["Send", "Listen", "Manage"]},
}


def kind_of(name: str) -> str:
    """``sender-2.1``, the second life of ``sender-2``, is a sender."""
    return name.partition("-")[0]


def queue_properties() -> dict[str, int]:
    """A plain queue, as the HTTP side of the broker has it."""
    return {"lock_duration_ms": LOCK_S * 1_000, "max_delivery_count": DELIVERIES_MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. Everything that is left to chance comes from the seed."""

    seed: int = 1
    messages: int = 10_000
    """To be acknowledged, at least."""
    has_spark: bool = False
    """The whole of it: a syphon on Spark, a prober, and faults of disks and clocks."""
    fault_s: float = 40.0
    """How long faults happen; afterwards everything is healed and drained."""
    senders: int = 3
    receivers: int = 2
    movers: int = 1
    """None beside a syphon on Spark: it has to do it all."""
    syphons: int = 1
    backlog_queues: int = 4
    in_flight: int = 4
    """Sends of one sender at a time."""
    crowd: int = 0
    """Sends at a time of the SDK's senders, in bursts of so many; 0: as the others."""
    late_secondary_s: float = 0.0
    """The secondary is away when senders start, for so long."""
    has_small_queue: bool = False
    """One backlog queue is soon full."""
    unknown_queues: int = 0
    """Backlog queues that a sender uses beyond those that the syphon was told of."""
    has_twin: bool = False
    """Another primary of the same name uses the same backlog queues."""
    batch_max: int = 8
    pause_s: float = 0.05
    """Between two sends of one of them."""
    send_timeout_s: float = 6.0
    ping_interval_s: float = 1.0
    drain_s_max: float = 60.0
    began_s: float = 0.0
    """When it was begun, by the wall clock: some messages are scheduled for a while later."""

    @classmethod
    def on_spark(cls, **numbers: Any) -> Plan:
        """The whole of it, in the setting that the seed chooses; two cores have to do for
        everybody, so that senders are slower."""
        usual = {"send_timeout_s": 10.0, "pause_s": 0.1, "drain_s_max": 180.0}
        setting = SETTINGS[numbers.get("seed", 0) % len(SETTINGS)]
        return cls(has_spark=True, **{**usual, **setting, **numbers})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls(**json.loads(text))

    # -- who there is -------------------------------------------------------------------------

    @property
    def roles(self) -> list[str]:
        """The processes beside the brokers."""
        counted = {
            "sender": self.senders,
            "receiver": self.receivers,
            "mover": 0 if self.has_spark else self.movers,
            "syphon": self.syphons,
            "prober": int(self.has_spark),
            TWIN: int(self.has_twin),
        }
        return [
            f"{role}-{number + 1}" for role, count in counted.items() for number in range(count)
        ]

    @property
    def all_roles(self) -> list[str]:
        """Those, and whoever comes to help; each has its lines from the beginning."""
        return [*self.roles, SECOND_SYPHON] if self.has_spark else self.roles

    def is_on_spark(self, role: str) -> bool:
        return self.has_spark and kind_of(role) == "syphon" and role != SECOND_SYPHON

    def host_of(self, role: str) -> str:
        """Where the lines of a role listen."""
        return f"127.9.{self.all_roles.index(role) + 1}.1"

    def climate_of(self, role: str) -> Weather:
        """What the lines of a role are like when nothing is wrong with them."""
        return Weather(latency_s=MOVER_LATENCY_S) if kind_of(role) in MOVING else CLEAR

    # -- what there is ------------------------------------------------------------------------

    @property
    def destinations(self) -> tuple[str, ...]:
        return (*QUEUES, TOPIC)

    @property
    def places(self) -> dict[str, Sequence[str]]:
        """Where what is sent to a destination arrives."""
        topic = [f"{TOPIC}/subscriptions/{name}" for name in SUBSCRIPTIONS]
        return {**{queue: [queue] for queue in QUEUES}, TOPIC: topic}

    @property
    def backlog(self) -> list[str]:
        """All backlog queues that there are."""
        count = self.backlog_queues + self.unknown_queues
        return [f"{PRIMARY}/x-servicebus-transfer/{number}" for number in range(count)]

    @property
    def known_backlog(self) -> list[str]:
        """Those that movers and syphons were told of."""
        return self.backlog[: self.backlog_queues]

    def in_flight_of(self, role: str) -> int:
        """How many sends a sender has under way at a time."""
        is_crowded = role.startswith((*SDK_SENDERS, *DROP_IN_SENDERS))
        return self.crowd if self.crowd and is_crowded else self.in_flight

    def backlog_queues_of(self, role: str) -> int:
        """How many backlog queues a sender uses."""
        has_all = role.startswith(MANY_QUEUES_SENDERS)
        return len(self.backlog) if has_all else self.backlog_queues

    @property
    def rules(self) -> Rules:
        return Rules(
            places={**self.places, TWIN: [TWIN]},
            without_duplicates=frozenset({ONCE}),
            without_order=frozenset({DOOMED, TWIN}),
            lock_s=LOCK_S,
            ttl_s={BRIEF: BRIEF_S},
            send_s=self.send_timeout_s,
            broker=PRIMARY,
            secondary=SECONDARY,
            reasons=frozenset(),
        )

    def config_json(self, broker: str) -> str:
        """The entities that a broker begins with, as a configuration of the official emulator.

        The backlog queues would be made by pairing; these have shorter locks, so that what a
        killed mover held is soon free.
        """
        usual = {"LockDuration": f"PT{LOCK_S}S", "MaxDeliveryCount": DELIVERIES_MAX}
        names = [PROBE, *QUEUES]
        special = {ONCE: DETECTING, BRIEF: {"DefaultMessageTimeToLive": f"PT{BRIEF_S}S"}}
        queues = [
            {"Name": each, "Properties": {**usual, **special.get(each, {})}} for each in names
        ]
        subscriptions = [{"Name": name, "Properties": usual, "Rules": []} for name in SUBSCRIPTIONS]
        topics = [{"Name": TOPIC, "Properties": {}, "Subscriptions": subscriptions}]
        if broker == SECONDARY:
            queues, topics = [{"Name": name, "Properties": usual} for name in self.backlog], []
        namespace = {"Name": broker, "Queues": queues, "Topics": topics}
        return json.dumps({"UserConfig": {"Namespaces": [namespace]}})


# In which the whole of it is played, by turns: the seeds of a campaign are consecutive.
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"crowd": 50, "unknown_queues": 4},
    {"late_secondary_s": 15.0, "has_small_queue": True, "has_twin": True},
    {"crowd": 50, "has_small_queue": True, "unknown_queues": 2},
)
