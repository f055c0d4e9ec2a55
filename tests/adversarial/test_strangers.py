"""Those who have no token, in great numbers (cases 163 to 168, and 191).

What bounds them is a pool of their own: it is small, it is emptied by its own members, and nobody
who has shown a token is counted in it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.adversarial.guards import BYSTANDER_QUEUE, wait_until
from tests.adversarial.prober import attacked
from tests.adversarial.redialling import (
    HALF_A_REQUEST,
    OPENED,
    SILENT,
    TLS_BEGUN,
    strangers,
)
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient

HELD_COUNT = 5_200
REDIALLED_COUNT = 300
NEW_CLIENT_COUNT = 142
# A client of any SDK dials again when its connection breaks; the Azure SDK three times.
TRIES_MAX = 4
# The Azure SDK waits longer (0.8 s, and then more).
RETRY_S = 0.2
# What an SDK waits for each step of a handshake.
PATIENCE_S = 30.0
# What a new client may wait for its place, and then for its token, on a quiet machine.
WAIT_S_MAX = 1.0
LOG_LINES_MAX = 400
# What the broker opens for itself when it is first used: readers of the store, HTTP.
OWN_DESCRIPTORS = 8


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own: what is left of a crowd ends by its time-outs, and is logged then."""
    data = tmp_path_factory.mktemp("crowded") / "data"
    with BrokerProcess(data, queues=(BYSTANDER_QUEUE,)) as running:
        yield running


class Arrival(NamedTuple):
    """How a new client got in."""

    tries: int
    """0 if it had no place."""
    place_s: float = 0.0
    """From the first dial to its open connection."""
    token_s: float = 0.0
    """From there to its token accepted and its link attached."""


def newcomer(
    broker: BrokerProcess, context: ssl.SSLContext | None = None, tries_max: int = TRIES_MAX
) -> Arrival:
    """Show a token on a connection of its own."""
    began_s = time.monotonic()
    for number in range(1, tries_max + 1):
        try:
            with WireClient(broker.port, timeout_s=PATIENCE_S, context=context) as client:
                client.open()
                opened_s = time.monotonic()
                assert client.put_token(broker.token()) == 202
                client.attach_sender(BYSTANDER_QUEUE)
                return Arrival(number, opened_s - began_s, time.monotonic() - opened_s)
        except (OSError, TimeoutError):
            time.sleep(RETRY_S)
    return Arrival(0)


@pytest.mark.parametrize(
    ("says", "addresses"),
    [
        pytest.param(SILENT, 1, id="case-163-silent-from-one-address"),
        pytest.param(SILENT, 20, id="case-163-silent-from-twenty-addresses"),
        pytest.param(OPENED, 1, id="case-164-opened-from-one-address"),
        pytest.param(HALF_A_REQUEST, 4, id="case-165-half-a-request"),
        pytest.param(TLS_BEGUN, 4, id="case-166-half-a-TLS-handshake"),
    ],
)
@pytest.mark.timeout(300)
def test_new_clients_find_a_place_among_strangers_who_redial(
    crowded: BrokerProcess, says: bytes, addresses: int
) -> None:
    """M13: 5,200 connections that are held and dialled anew leave every new client a place."""
    log_size, descriptors = len(crowded.log()), crowded.fd_count()
    with (
        attacked(crowded) as attack,
        strangers(crowded.port, count=HELD_COUNT, addresses=addresses, says=says) as crowd,
    ):
        crowd.wait_until_dialled(HELD_COUNT + REDIALLED_COUNT)
        began_s = time.monotonic()
        with ThreadPoolExecutor(32) as pool:
            came = list(
                pool.map(lambda _n: newcomer(crowded, tries_max=20), range(NEW_CLIENT_COUNT))
            )
        tries = [each.tries for each in came]
        seconds = time.monotonic() - began_s
        attack.lasted(5.0)
        # Where others use the machine, the broker accepts later than the flood redials.
        tries_max = TRIES_MAX * max(1.0, attack.slowdown)
    figures = {count: tries.count(count) for count in sorted(set(tries))}
    print(f"places by tries {figures} in {seconds:.1f} s, {crowd.dial_count} dialled")
    assert 0 not in tries and max(tries) <= tries_max, f"places by tries: {figures}"
    # Then nothing of the crowd is left once its time-outs are over, and the log is short
    wait_until(
        lambda: crowded.fd_count() <= descriptors + OWN_DESCRIPTORS,
        lambda: f"{crowded.fd_count()} descriptors instead of {descriptors}",
        30,
    )
    written = crowded.log()[log_size:]
    assert "Traceback" not in written
    assert len(written.splitlines()) <= LOG_LINES_MAX, written[:2_000]


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.timeout(300)
def test_case_191_new_clients_are_quick_beside_a_flood_of_whole_handshakes(
    crowded: BrokerProcess, is_secure: bool
) -> None:
    """M13: from their own address; each has its place, and then its token. On a quiet machine
    both take less than a second."""
    # A TLS handshake costs the flood as much as the broker: fewer of them make it as dense.
    count = 1_500 if is_secure else HELD_COUNT
    ca_path = str(crowded.ca_path) if is_secure else ""
    context = ssl.create_default_context(cafile=ca_path) if is_secure else None
    with (
        attacked(crowded) as attack,
        strangers(crowded.port, count=count, addresses=1, says=OPENED, ca_path=ca_path) as crowd,
    ):
        crowd.wait_until_dialled(count + REDIALLED_COUNT)
        # What counts is the time that all tries take together.
        came = [newcomer(crowded, context, tries_max=20) for _ in range(NEW_CLIENT_COUNT)]
        attack.lasted(5.0)
        slowdown = attack.slowdown
    place_s, token_s = max(each.place_s for each in came), max(each.token_s for each in came)
    figures = f"at most {place_s:.2f} s to a place, {token_s:.2f} s to a token, of {len(came)}"
    print(f"{figures}; slowdown {slowdown:.1f}, {crowd.dial_count} dialled")
    assert all(each.tries for each in came), "a client had no place"
    # On a machine that others use, the flood and the broker wait for processors, and connections
    # that were evicted are dialled anew before they can be kept open.
    patience_s = PATIENCE_S * max(1.0, slowdown / 2)
    assert max(place_s, token_s) <= (WAIT_S_MAX if slowdown < 1.2 else patience_s), figures
