"""Tokens that are not what they should be (cases 33 to 40, 46, 49 and 54), shown to ``$cbs``.

Each one is refused with 401 and a sentence, and afterwards its connection still may do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.answers import assert_well_put
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient, connected
from twinbus.amqp.delivery_states import Accepted
from twinbus.amqp.message.message import Message
from twinbus.broker.access.sas import make_token

UNAUTHORIZED = "amqp:unauthorized-access"
WRONG = (
    "The rule name or the signature of the token is wrong. "
    "Check SharedAccessKeyName and SharedAccessKey."
)
YEAR_36812 = 1_099_511_627_776

Forge = Callable[["Forger"], str]


class Forger:
    """Makes tokens with the right key and anything else wrong."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.name, self.key = broker.root_rule
        self.port = broker.port
        self.later_s = int(time.time()) + 3_600

    def token(self, resource: str = "", *, name: str | None = None, key: str | None = None) -> str:
        """A token for a path of this namespace, or for a whole URL."""
        if "://" not in resource:
            resource = f"sb://localhost:{self.port}/{resource}"
        return make_token(
            resource=resource,
            rule_name=self.name if name is None else name,
            key=self.key if key is None else key,
            expires_s=self.later_s,
        )

    def signed(
        self, *, sr: str | None = None, se: str | None = None, skn: str | None = None
    ) -> str:
        """A token whose signature is right for whatever stands in its fields."""
        sr = quote(f"sb://localhost:{self.port}/", safe="") if sr is None else sr
        se = str(self.later_s) if se is None else se
        digest = hmac.digest(self.key.encode(), f"{sr}\n{se}".encode(), hashlib.sha256)
        sig = quote(base64.b64encode(digest), safe="")
        return f"SharedAccessSignature sr={sr}&sig={sig}&se={se}&skn={skn or self.name}"


@pytest.fixture
def forger(broker: BrokerProcess) -> Forger:
    return Forger(broker)


@pytest.fixture
def stranger(broker: BrokerProcess) -> Iterator[WireClient]:
    """A client that is connected and has shown nothing."""
    with WireClient(broker.port).open() as client:
        yield client


def refusal(broker: BrokerProcess, client: WireClient, token: Any, **properties: Any) -> str:
    """The sentence with which a token is refused; the client is no step further."""
    status, text = client.show_token(token, **properties)
    assert status == 401, text
    assert_well_put(text, broker.root_rule[1])
    for link in (client.attach_sender("vault"), client.attach_receiver("vault")):
        assert client.refusal(link) == UNAUTHORIZED
    return text


def changed(token: str, name: str, value: str) -> str:
    """The token with one field replaced, its signature as it was."""
    fields = [part.split("=", 1) for part in token.split(" ", 1)[1].split("&")]
    kept = [f"{key}={value if key == name else old}" for key, old in fields]
    return "SharedAccessSignature " + "&".join(kept)


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda f: f.token(key="wrong"), id="case-33-wrong-key"),
        pytest.param(
            lambda f: changed(f.token(), "sig", quote("A" * 43 + "=")), id="case-33-zeros"
        ),
        pytest.param(lambda f: changed(f.token(), "sig", "AAAA"), id="case-33-short"),
        pytest.param(lambda f: changed(f.token(), "sig", "%21"), id="case-33-not-base64"),
        pytest.param(lambda f: changed(f.token(), "se", str(f.later_s + 1)), id="case-33-later"),
        pytest.param(
            lambda f: changed(f.token("vault"), "sr", quote(f"sb://localhost:{f.port}/", safe="")),
            id="case-33-other-resource",
        ),
        pytest.param(lambda f: f.token(name="nobody"), id="case-40-unknown-rule"),
        pytest.param(lambda f: f.token(name=f.name.lower()), id="case-40-rule-in-other-case"),
        pytest.param(lambda f: f.signed(skn="..%2F..%2Froot"), id="case-40-path-as-rule"),
        pytest.param(lambda f: f.signed(skn="r" * 51), id="case-40-long-rule"),
    ],
)
def test_a_wrong_signature_and_an_unknown_rule_look_alike(
    broker: BrokerProcess, stranger: WireClient, forger: Forger, forge: Forge
) -> None:
    """M6: nobody can find out which rules exist."""
    assert refusal(broker, stranger, forge(forger)) == WRONG


@pytest.mark.parametrize(
    "skn", ["root%0d%0aX", "root%00", "ro%c3ot", "%252e", "ro ot"], ids=lambda skn: f"case-40-{skn}"
)
def test_a_rule_name_cannot_hide_anything(
    broker: BrokerProcess, stranger: WireClient, forger: Forger, skn: str
) -> None:
    """M6: and what it hides is not repeated in the log (see the guards)."""
    assert "X" not in refusal(broker, stranger, forger.signed(skn=skn))
    assert skn not in broker.log()


def test_case_34_a_token_that_ended_a_second_ago_is_refused(
    broker: BrokerProcess, stranger: WireClient
) -> None:
    """M6: the signature is right, the time is over."""
    text = refusal(broker, stranger, broker.token(expires_in_s=-1))
    assert "expired" in text


BAD_EXPIRIES = {
    "case-35-negative": "-1",
    "case-35-1e400": "1e400",
    "case-35-500-nines": "9" * 500,
    "case-35-nan": "nan",
    "case-35-inf": "inf",
    "case-35-float": "1900000000.5",
    "case-35-blank": "%20",
    "case-35-leading-blank": " 1900000000",
    "case-35-leading-plus": "+1900000000",
    "case-35-underscore": "1_900_000_000",
    "case-35-hexadecimal": "0x77359400",
    "case-35-arabic-digits": "\u0661\u0669\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660",
    "case-35-fullwidth-digits": "\uff11\uff19\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff10",
    "case-35-nothing": "",
    "case-36-year-36812": str(YEAR_36812),
    "case-36-one-second-after-9999": "253402300800",
}


@pytest.mark.parametrize("se", list(BAD_EXPIRIES.values()), ids=list(BAD_EXPIRIES))
def test_an_expiry_is_a_plain_number_of_this_calendar(
    broker: BrokerProcess, stranger: WireClient, forger: Forger, se: str
) -> None:
    """M6: although the signature is right for it."""
    refusal(broker, stranger, forger.signed(se=se))


def test_case_35_an_expiry_of_5000_digits_is_not_even_read(
    broker: BrokerProcess, stranger: WireClient, forger: Forger
) -> None:
    """M6: the length of the token decides."""
    assert "2048" in refusal(broker, stranger, forger.signed(se="9" * 5_000))


def test_case_36_the_last_second_of_the_calendar_is_taken(
    stranger: WireClient, forger: Forger
) -> None:
    """M6: a far expiry is no overflow; the grant itself ends after a day (see
    tests/unit/broker/access)."""
    assert stranger.put_token(forger.signed(se="253402300799")) == 202


def test_case_37_a_token_for_queue1_does_not_open_queue10(broker: BrokerProcess) -> None:
    """M6: whole segments are compared, not letters."""
    first = broker.fresh_queue()
    for name in (f"{first}0", f"x/{first}"):
        broker.create_queue(name)
    with connected(broker.port, broker.token(path=first)) as client:
        for name in (f"{first}0", f"x/{first}", first[:-1]):
            assert client.refusal(client.attach_sender(name)) == UNAUTHORIZED
            assert client.refusal(client.attach_receiver(name)) == UNAUTHORIZED
        sender = client.attach_sender(first)
        assert client.send(sender, Message(body=b"mine").encode()) == Accepted()


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("sb://elsewhere:{port}/", id="case-38-other-host"),
        pytest.param("sb://localhost.evil.example:{port}/", id="case-38-longer-host"),
        pytest.param("sb://localhost:{other_port}/", id="case-38-other-port"),
        pytest.param("ftp://localhost:{port}/", id="case-38-other-scheme"),
        pytest.param("localhost:{port}/", id="case-38-no-scheme"),
        pytest.param("sb://user@localhost:{port}/", id="case-38-user"),
        pytest.param("sb://localhost:{port}/vault?x=1", id="case-38-query"),
        pytest.param("sb://localhost:{port}/%76ault", id="case-38-encoded-twice"),
        pytest.param("sb://localhost:{port}//vault", id="case-38-empty-segment"),
        pytest.param("sb://localhost:{port}/x/../vault", id="case-38-dots"),
        pytest.param("sb://localhost:{port}\\vault", id="case-38-backslash"),
    ],
)
def test_a_token_for_another_place_is_refused(
    broker: BrokerProcess, stranger: WireClient, forger: Forger, url: str
) -> None:
    """M6: although our own key signed it."""
    resource = url.format(port=broker.port, other_port=broker.port % 65_535 + 1)
    refusal(broker, stranger, forger.signed(sr=quote(resource, safe="")))


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("SB://LOCALHOST:{port}/{queue}", id="case-38-upper-case"),
        pytest.param("sb://localhost:{port}/{queue}/", id="case-38-trailing-slash"),
        pytest.param("amqp://127.0.0.1:{port}/{queue}", id="case-38-address"),
        pytest.param("https://localhost/{queue}", id="case-38-without-port"),
    ],
)
def test_another_spelling_of_the_same_place_is_taken(
    broker: BrokerProcess, forger: Forger, url: str
) -> None:
    """M6: and opens exactly that place."""
    queue = broker.fresh_queue()
    name = queue.upper() if url.startswith("SB") else queue
    token = forger.signed(sr=quote(url.format(port=broker.port, queue=name), safe=""))
    with connected(broker.port, token) as client:
        sender = client.attach_sender(queue)
        assert client.send(sender, Message(body=b"x").encode()) == Accepted()
        assert client.refusal(client.attach_sender("vault")) == UNAUTHORIZED


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda f: f"{f.token('x')}&sr={f.token().split('sr=')[1]}", id="case-39-sr"),
        pytest.param(lambda f: f"{f.token(key='w')}&sig=AAAA", id="case-39-sig"),
        pytest.param(lambda f: f"{f.token()}&se=9999999999", id="case-39-se"),
        pytest.param(lambda f: f"{f.token(name='x')}&skn={f.name}", id="case-39-skn"),
        pytest.param(lambda f: f"{f.token()}&x=1", id="case-39-unknown"),
        pytest.param(lambda f: f"{f.token()}&", id="case-39-nothing"),
        pytest.param(lambda f: f.token().replace("&se=", "&SE="), id="case-39-upper-case"),
    ],
)
def test_every_field_stands_exactly_once(
    broker: BrokerProcess, stranger: WireClient, forger: Forger, forge: Forge
) -> None:
    """M6: a token is read one way or not at all."""
    assert "once each" in refusal(broker, stranger, forge(forger))


def test_case_46_a_token_for_one_entity_opens_no_other(broker: BrokerProcess) -> None:
    """M6: on the same connection, before and after; whether the other exists is not told."""
    own, other = broker.fresh_queue(), broker.fresh_queue()
    with connected(broker.port, broker.token(path=own)) as client:
        for name in (other, f"{other}/$DeadLetterQueue", f"{other}/$management", "missing"):
            for link in (client.attach_sender(name), client.attach_receiver(name)):
                error = client.detach_error(link)
                assert error.condition == UNAUTHORIZED
                assert_well_put(error.description, broker.root_rule[1])
        assert client.attach_receiver(f"{own}/$DeadLetterQueue").peer.source is not None
        assert client.put_token(broker.token(path=other)) == 202
        sender = client.attach_sender(other)
        assert client.send(sender, Message(body=b"x").encode()) == Accepted()


def test_case_49_a_token_can_be_shown_again_while_it_lasts(broker: BrokerProcess) -> None:
    """M6: a token is a bearer's: whoever has it may use it until it ends, from anywhere."""
    queue = broker.fresh_queue()
    token = broker.token(path=queue, expires_in_s=3)
    for _connection in range(2):
        with connected(broker.port, token) as client:
            assert client.attach_sender(queue).peer.target is not None
    with WireClient(broker.port).open() as late:
        deadline = time.monotonic() + 10
        while late.put_token(token) == 202:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "expired" in refusal(broker, late, token)


NO_ALGORITHM = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJhdWQiOiJzYjovL2xvY2FsaG9zdC8ifQ."


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        pytest.param(NO_ALGORITHM, "jwt", id="case-54-jwt-without-signature"),
        pytest.param(f"Bearer {NO_ALGORITHM}", "jwt", id="case-54-bearer"),
        pytest.param("", "jwt", id="case-54-empty"),
        pytest.param("sharedaccesssignature sr=x", "jwt", id="case-54-other-case"),
        pytest.param("SharedAccessSignature", "servicebus.windows.net:sastoken", id="case-54-bare"),
    ],
)
def test_what_is_not_a_shared_access_signature_is_refused(
    broker: BrokerProcess, stranger: WireClient, token: str, kind: str
) -> None:
    """M6: whatever type it claims to have."""
    refusal(broker, stranger, token, type=kind)


@pytest.mark.parametrize(
    "kind", ["saml", "amqp:swt", "", "JWT ", 7, None], ids=lambda k: f"case-54-{k!r}"
)
def test_an_unknown_type_of_token_is_refused(
    broker: BrokerProcess, stranger: WireClient, kind: object
) -> None:
    """M6: although the token would be good under its own type."""
    text = refusal(broker, stranger, broker.token(), type=kind)
    assert "type" in text


@pytest.mark.parametrize("kind", ["jwt", "servicebus.windows.net:sastoken"])
def test_case_54_the_types_that_sdks_use_for_signatures_are_known(
    broker: BrokerProcess, stranger: WireClient, kind: str
) -> None:
    """M10: the stock SDK for Python says jwt for a shared access signature."""
    assert stranger.show_token(broker.token(), type=kind)[0] == 202


@pytest.mark.parametrize(
    ("token", "properties"),
    [
        pytest.param(b"SharedAccessSignature", {}, id="case-54-binary"),
        pytest.param({"token": "x"}, {}, id="case-54-map"),
        pytest.param(None, {}, id="case-54-null"),
        pytest.param("x", {"operation": "delete-token"}, id="case-54-other-operation"),
        pytest.param("x", {"operation": 7}, id="case-54-number-as-operation"),
        pytest.param("x", {"operation": None}, id="case-54-no-operation"),
    ],
)
def test_a_request_that_puts_no_token_is_a_bad_request(
    stranger: WireClient, token: Any, properties: dict[str, Any]
) -> None:
    """M6: 400, because there is nothing to verify."""
    status, text = stranger.show_token(token, **properties)
    assert status == 400
    assert_well_put(text)
    assert stranger.refusal(stranger.attach_sender("vault")) == UNAUTHORIZED
