"""Any message through the backlog equals the same message sent directly (P12)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.roundtrip import as_delivered, essence, home_again, messages
from twinbus.encoding.envelope import (
    alias,
    overhead_bytes,
    overhead_bytes_max,
    read_owner_mark,
    restore,
    size_if_aliased,
)

paths = st.sampled_from(["o", "orders", "Billing/Invoices", "p" * 255, "p" * 256, "q" * 260])
owners = st.sampled_from(["", "0123456789ab contoso.example", "0123456789ab " + "h" * 100])
thorough = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(message=messages(), path=paths, owner=owners)
def test_a_message_comes_home_as_it_was_sent(message: bytes, path: str, owner: str) -> None:
    """P12, P21: every value and type comes back, whatever the message is made of."""
    delivered = as_delivered(alias(message, path, owner), delivery_count=3)

    restored = restore(delivered, now_ms=0)

    assert (restored.path, restored.owner) == (path, owner)
    assert read_owner_mark(delivered) == owner
    assert essence(restored.encoded) == essence(message)


@thorough
@given(message=messages(), path=paths, owner=owners)
def test_the_size_of_the_copy_is_known_beforehand(message: bytes, path: str, owner: str) -> None:
    """P13, P21: the overhead is exact without making the copy, and never above its bound."""
    size = len(alias(message, path, owner))

    assert size_if_aliased(message, path, owner) == size
    assert overhead_bytes(message, path, owner) == size - len(message)
    assert size - len(message) <= overhead_bytes_max(path, owner) <= 463


@thorough
@given(message=messages())
def test_home_again_and_away_again_changes_nothing_more(message: bytes) -> None:
    """P12: a message that was diverted twice is the message that was diverted once."""
    once = home_again(alias(message, "orders"))

    assert essence(home_again(alias(once, "orders"))) == essence(once)
