"""Every limit of the AMQP layer, with its reason.

Rule 1: a limit that guards memory is checked against the declared number, before anything of
        that size is built.
Rule 2: counts are a budget of the whole frame or message (see Budget), because many small counts
        add up to a large one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

UINT_MAX: Final = 0xFFFFFFFF
"""The largest uint. Delivery ids and transfer ids are sequence numbers that wrap after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpLimits:
    """What one peer may use. The defaults are the broker's."""

    frame_size_bytes_max: int = 1_048_576
    """The largest frame we accept, offered in our open. 1 MiB is what the Azure SDK offers us,
    and holds a full batch in one frame."""

    nesting_max: int = 64
    """Compounds and described values inside one another. The Azure SDK stops at 64 as well: what
    is nested deeper could be stored and then never be received."""

    compound_count_max: int = 65_536
    """Elements of all lists, maps and arrays in one message together, which is stored and never
    built: checking as many takes up to 30 ms, in steps of at most 2 ms (see body_steps in
    amqp/message/sections.py). Frames and requests, which are built, have far fewer
    (PERFORMATIVE_COUNT_MAX and below)."""

    value_count_max: int = 12_288
    """The same for a message that becomes Python values, with VALUE_COST for each list, map,
    array and described value: requests to ``$management`` and ``$cbs``. A thousand messages to
    schedule, each a map with four entries, need 12,000; the worst that fit take 4 ms."""

    hashed_key_cost_max: int = 1_024
    """Map keys whose hashes a peer can choose, in one frame or message together: 1,024 numbers of
    more than a byte, or 64 UUIDs (KEY_COSTS in amqp/codec/primitives.py). The worst 1,024 take 2
    ms."""

    body_sections_max: int = 4_500
    """Data sections of one body: the messages of a batch. Service Bus accepts as many in its
    Standard tier; a batch of 1 MiB could hold 104,000."""

    channel_max: int = 255
    """The highest channel number, so 256 sessions a connection. The SDK uses one."""

    sessions_per_connection_max: int = 256
    """Sessions that are open at the same time."""

    links_per_session_max: int = 1_023
    """The highest handle, sent as handle-max. With links_per_connection_max it bounds the link
    tables that an attach flood can fill."""

    links_per_connection_max: int = 1_024
    """Links of all sessions of a connection. Service Bus allows an entity about a thousand."""

    link_text_characters_max: int = 1_024
    """The name of a link, and the addresses of its source and target. An entity's path has at
    most 260 characters; the names that the SDKs generate have less than 200."""

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
    """A peer that has opened and not sent a valid token by then is closed: otherwise any client
    could use all connections of the broker."""

    pre_auth_bytes_max: int = 65_536
    """What is buffered for a peer that is not authenticated yet. The whole handshake of the SDK,
    token included, is under 4 KB."""

    idle_timeout_s: float = 240.0
    """Idle time after which a connection ends. Service Bus uses 240 s; the SDK's keep-alive thread
    can be 30 s late, so that less than 120 s would disconnect healthy clients."""

    def before_token(self) -> AmqpLimits:
        """What a peer may use that is not authenticated yet: enough for a handshake and a token.
        The limits that the open announces count afterwards."""
        return replace(
            self,
            frame_size_bytes_max=min(self.frame_size_bytes_max, PRE_AUTH_FRAME_BYTES_MAX),
            compound_count_max=min(self.compound_count_max, PRE_AUTH_COMPOUND_COUNT_MAX),
            body_sections_max=min(self.body_sections_max, PRE_AUTH_SECTIONS_MAX),
            sessions_per_connection_max=min(
                self.sessions_per_connection_max, PRE_AUTH_SESSIONS_MAX
            ),
            links_per_connection_max=min(self.links_per_connection_max, PRE_AUTH_LINKS_MAX),
            partial_bytes_per_connection_max=min(
                self.partial_bytes_per_connection_max, self.pre_auth_bytes_max
            ),
        )


# A token of an identity provider has 2 to 16 KB; all other frames before it are smaller.
PRE_AUTH_FRAME_BYTES_MAX: Final = 32_768
# A request with a token has about 40 elements, an open with many properties 60.
PRE_AUTH_COMPOUND_COUNT_MAX: Final = 512
# A request with a token has one section in its body.
PRE_AUTH_SECTIONS_MAX: Final = 16
# Clients use one session and two links to $cbs for the first token; some begin others meanwhile.
PRE_AUTH_SESSIONS_MAX: Final = 8
PRE_AUTH_LINKS_MAX: Final = 4


DEFAULT_LIMITS: Final = AmqpLimits()

STORED_LIMITS: Final = AmqpLimits(
    compound_count_max=1 << 26,
    value_count_max=1 << 26,
    hashed_key_cost_max=1 << 26,
    body_sections_max=1 << 26,
)
"""For stored messages: every message that was accepted once can be read again, also from an older
version and with what the broker has added."""

VALUE_COST: Final = 3
"""What a list, map, array or described value that is built takes from the budget beside its
elements: creating one takes as long as three or four small elements."""

PERFORMATIVE_COUNT_MAX: Final = 1_024
"""Elements of one performative, counted as for value_count_max. The largest that SDKs send, an
attach with a filter and its properties, has about 60."""

SECTION_COST: Final = 32
"""What a section takes from the budget of elements that is an amqp-sequence or has a descriptor of
an unusual form: with compound_count_max a message has 2,048 of them."""

PROPERTY_ELEMENT_COST: Final = 31
"""What a name or value of the application properties takes from the budget of a message: with
compound_count_max there are 1,024 properties at most. Service Bus limits their bytes only, to
64 KB; more names than this belong into the body. A rule that reads them builds them all, in up
to 2 ms."""

ANNOTATION_ELEMENT_COST: Final = 63
"""The same for annotations, which are built and written again when the message is accepted: 512
of them, in up to 2 ms. The SDKs send three."""

NESTED_ELEMENT_COST: Final = 128
"""The same for the elements of a list, map or array inside of an annotation."""


class Budget:
    """The remaining counts while one frame or message is decoded.

    Create one for each frame or message. A budget cannot be used after a DecodeError.
    """

    __slots__ = ("items", "keys", "levels", "sections")

    def __init__(self, limits: AmqpLimits = DEFAULT_LIMITS, *, is_built: bool = True) -> None:
        """``is_built=False`` is for a message that is checked and stored, not decoded."""
        self.items = limits.compound_count_max
        """Elements that compounds may still have, and costs that are counted with them."""
        if is_built and self.items > limits.value_count_max:
            self.items = limits.value_count_max
        self.keys = limits.hashed_key_cost_max
        """What keys with hashes that a peer can choose may still cost."""
        self.sections = limits.body_sections_max
        """Data sections that a body may have."""
        self.levels = limits.nesting_max
        """Levels of nesting that compounds and described values may still have."""
