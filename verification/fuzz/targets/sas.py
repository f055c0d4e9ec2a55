"""Shared access signatures: read and verified, always for somebody without a token."""

from __future__ import annotations

from random import Random
from typing import Final

from twinbus.broker.access.rules import RuleSet
from twinbus.broker.access.sas import Audience, make_token, parse_token, verify
from twinbus.errors import AccessDenied
from verification.fuzz import texts
from verification.fuzz.in_memory import KEY, RULES
from verification.fuzz.oracle import Meter
from verification.fuzz.targets.base import BaseTarget

AUDIENCE: Final = Audience(frozenset({"localhost", "127.0.0.1"}), 5672, any_name=True)
NOW_S: Final = 1_800_000_000.0


def _rules(path: str) -> RuleSet | None:
    return RULES if path in ("", "orders") else None


class SasTarget(BaseTarget):
    name = "sas"
    documented = (AccessDenied,)

    def generate(self, random: Random, size: int) -> bytes:
        if random.random() < 0.3:
            resource = random.choice(("sb://localhost/", "sb://localhost:5672/orders/a/b"))
            made = make_token(resource=resource, rule_name="SENDER", key=KEY, expires_s=4 * 10**9)
        else:
            made = texts.token(random, size)
        return made.encode("utf-8", "surrogatepass")

    def is_stranger(self, data: bytes) -> bool:
        return True

    def execute(self, data: bytes, meter: Meter) -> None:
        text = data.decode("utf-8", "replace")
        meter.begin()
        meter.call("verify", _verify, text)


def _verify(text: str) -> None:
    verify(parse_token(text), audience=AUDIENCE, rules=_rules, now_s=NOW_S)


def make() -> SasTarget:
    return SasTarget()
