"""The running broker, as the processes that run the tests see it.

The run starts one broker for all of them and writes what it announced into a file that only
this user can read; the environment names that file. Each process has a namespace of its own,
because some tests begin with deleting everything they find.
"""

from __future__ import annotations

import json
import os
import secrets
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from tests.support.broker_process import BrokerProcess

ANNOUNCEMENT: Final = "TWINBUS_CONFORMANCE_ANNOUNCEMENT"
NAMESPACE: Final = "conformance"
"""Also the beginning of the other namespaces' names."""


def namespaces(count: int) -> list[str]:
    """The names for so many processes, in the way pytest-xdist numbers them."""
    return [NAMESPACE, *(f"{NAMESPACE}-gw{number}" for number in range(count))]


def announce(broker: BrokerProcess, path: Path) -> None:
    """Let child processes know the broker."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(broker.announcement))
    os.environ[ANNOUNCEMENT] = str(path)


@cache
def running_broker() -> BrokerProcess:
    """The broker that the run started."""
    announcement = json.loads(Path(os.environ[ANNOUNCEMENT]).read_text())
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    name = NAMESPACE if worker is None else f"{NAMESPACE}-{worker}"
    return BrokerProcess(None, namespace=name).found(announcement)


def host() -> str:
    """What the tests take for the fully qualified namespace."""
    return f"localhost:{running_broker().port}"


def fresh_name(kind: str) -> str:
    return f"{kind}-{uuid4().hex[:16]}"


def connection_string(rule_name: str, key: str, path: str | None = None) -> str:
    entity = "" if path is None else f";EntityPath={path}"
    return (
        f"Endpoint=sb://{host()};SharedAccessKeyName={rule_name};SharedAccessKey={key}"
        f";UseDevelopmentEmulator=true{entity}"
    )


def new_rule(name: str, claims: list[str]) -> dict[str, Any]:
    """An access rule of a queue, with keys of its own."""
    keys = {key: secrets.token_urlsafe(32) for key in ("primary_key", "secondary_key")}
    return {"name": name, "claims": claims, **keys}
