"""Every limit of the AMQP layer, with its reason.

Rule 1: a limit that guards memory is checked against the declared number, before anything of
        that size is built.
Rule 2: counts are a budget of the whole frame or message (see Budget), because many small
        allowances add up to a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpLimits:
    """What one peer may ask of us. The defaults are the broker's."""

    frame_size_bytes_max: int = 1_048_576
    """The largest frame we accept, offered in our open. 1 MiB is what the Azure SDK offers us,
    and holds a full batch in one frame."""

    nesting_max: int = 64
    """Compounds and described values inside one another. The Azure SDK stops at 64 as well: what
    is deeper could be stored and then never be received."""

    compound_count_max: int = 65_536
    """Elements of all lists, maps and arrays in one frame or message together. It keeps the
    objects that 1 MiB can turn into below 10 MB, and the worst frame
    (65,535 UUIDs) at 85 ms of decoding on the machine of docs/BENCHMARKS.md."""

    channel_max: int = 255
    """The highest channel number, so 256 sessions a connection. The SDK uses one."""

    links_per_session_max: int = 1_023
    """The highest handle, sent as handle-max. With links_per_connection_max it bounds the link
    tables that an attach flood can fill."""

    links_per_connection_max: int = 1_024
    """Links of all sessions of a connection. Service Bus allows an entity about a thousand."""

    unsettled_per_link_max: int = 2_048
    """Deliveries a receiver may leave unsettled, whatever credit it grants."""

    unsettled_per_connection_max: int = 16_384
    """The same for all links of a connection, so that many links do not multiply it."""

    delivery_tag_bytes_max: int = 32
    """AMQP 1.0 section 2.8.7 allows 32."""

    incoming_window: int = 2_048
    """Transfers a peer may send before we open the session window again."""

    partial_bytes_per_connection_max: int = 8_388_608
    """Bytes of deliveries that have begun and not ended, on all links of a connection together.
    A link may hold one batch; a thousand links must not hold a thousand."""

    message_size_bytes_max: int = 262_144
    """One message: 256 KB, the Standard tier of Service Bus."""

    batch_size_bytes_max: int = 1_048_576
    """One batch envelope with all its messages: 1 MiB, as the SDK assumes."""

    handshake_timeout_s: float = 10.0
    """A peer that has not opened its connection by then is closed (slow-loris guard)."""

    token_timeout_s: float = 60.0
    """A peer that has opened and not shown a valid token by then is closed: otherwise anybody
    could take all the connections there are."""

    pre_auth_bytes_max: int = 65_536
    """What we buffer for a peer that has not shown who it is. The whole handshake of the SDK,
    token included, is under 4 KB."""

    idle_timeout_s: float = 240.0
    """Silence after which a peer is gone. Service Bus uses 240 s; the SDK's keep-alive thread
    can be 30 s late, so under 120 s would cut healthy clients."""


DEFAULT_LIMITS: Final = AmqpLimits()


class Budget:
    """What is left of the counts while one frame or message is decoded.

    Make one for each frame or message. A budget that ended in a DecodeError is spent.
    """

    __slots__ = ("items", "levels")

    def __init__(self, limits: AmqpLimits = DEFAULT_LIMITS) -> None:
        self.items = limits.compound_count_max
        """Elements that compounds may still have."""
        self.levels = limits.nesting_max
        """Levels that compounds and described values may still descend."""
