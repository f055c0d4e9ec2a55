"""Our broker in a process of its own, started as a user would start it.

Ports and keys are read from what it prints; queues come and go through its HTTP side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Mapping
from pathlib import Path

from verification.benchmarks.processes import BenchError, end_group, free_port, spawn, wait_for
from verification.benchmarks.wire import Address, sas_token

NAMESPACE = "bench"
# The promise is one second; a restart with a million messages may take ten.
START_WAIT_S_MAX = 60.0
HTTP_TIMEOUT_S = 60.0
TOKEN_LIFETIME_S = 600
# A million messages of 1 KB pass the default quota of 1024 MB.
QUEUE_PROPERTIES = {"max_size_mb": 5120}


class TwinbusNode:
    """One broker; ``start`` may be called again after ``stop`` or ``kill`` with the same data."""

    def __init__(
        self, directory: Path, namespace: str = NAMESPACE, source: Path | None = None
    ) -> None:
        """``source`` is the ``src`` directory of another commit; otherwise it is this one's."""
        directory.mkdir(parents=True, exist_ok=True)
        self._source = source
        self._namespace = namespace
        self._log = directory / "serve.log"
        self._command = [
            sys.executable, "-m", "twinbus", "serve", "--output", "json", "--admin-port", "0",
            "--data", str(directory / "data"), "--namespace", f"{namespace}:{free_port()}",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._address: Address | None = None
        self.connection_string = ""
        """Known once it has started; a key is in it."""
        self._admin_port = 0

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError("the broker is not running")
        return self._process.pid

    @property
    def address(self) -> Address:
        if self._address is None:
            raise BenchError("the broker is not running")
        return self._address

    def start(self) -> None:
        """Return when the broker has said where it listens, which it does once it is ready."""
        self._log.unlink(missing_ok=True)
        env = dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
        if self._source is not None:
            env["PYTHONPATH"] = str(self._source)
        self._process = spawn(self._command, self._log, env)
        line = wait_for("the start of twinbus", self._printed, START_WAIT_S_MAX)
        ready = json.loads(line)
        text = ready["namespaces"][self._namespace]["connection_string"]
        self._address = Address.from_connection_string(text)
        self.connection_string = text
        self._admin_port = ready["admin_port"]

    def _printed(self) -> str | None:
        text = self._log.read_text()
        if self._process is not None and self._process.poll() is not None:
            raise BenchError(f"twinbus ended while starting: {text.strip()[-500:]}")
        lines = [line for line in text.splitlines(keepends=True) if line.startswith("{")]
        return lines[0] if lines and lines[0].endswith("\n") else None

    def create_queue(self, queue: str) -> None:
        self.put(f"queues/{queue}", QUEUE_PROPERTIES)

    def delete_queue(self, queue: str) -> None:
        self.delete(f"queues/{queue}")

    def size_bytes(self, queue: str) -> int:
        """What the queue holds, locked messages included."""
        return self._count(queue, "size_in_bytes")

    def active(self, queue: str) -> int:
        """Messages that can be received."""
        return self._count(queue, "active_message_count")

    def _count(self, queue: str, what: str) -> int:
        return int(json.loads(self._request("GET", f"queues/{queue}", None))[what])

    def active_in_all(self, queues: Collection[str]) -> int:
        """Messages that can be received from these queues, by one question."""
        return self._sum(queues, "active_message_count")

    def held_in_all(self, queues: Collection[str]) -> int:
        """Messages of these queues that are no dead letters, locked and deferred ones included."""
        return self._sum(queues, "active_message_count", "deferred_message_count")

    def _sum(self, queues: Collection[str], *counts: str) -> int:
        wanted = set(queues)
        found = json.loads(self._request("GET", "queues", None))
        return sum(int(each[count]) for each in found if each["path"] in wanted for count in counts)

    def purge(self, queue: str) -> None:
        """Delete all messages of a queue; whoever is attached to it stays."""
        self._request("POST", f"queues/{queue}/purge", b"{}")

    def cannot_send(self, queue: str) -> None:
        """From now on every send to a queue fails with an error; see all_well()."""
        fault = {"kind": "cannot-send", "scope": {"entity": queue}}
        self._request("POST", "faults", json.dumps(fault).encode())

    def all_well(self) -> None:
        """End every fault."""
        self.delete("faults")

    def put(self, path: str, properties: Mapping[str, object]) -> None:
        self._request("PUT", path, json.dumps(properties).encode())

    def delete(self, path: str) -> None:
        self._request("DELETE", path, None)

    def _request(self, verb: str, path: str, body: bytes | None) -> bytes:
        base = f"http://127.0.0.1:{self._admin_port}"
        expires_s = int(time.time()) + TOKEN_LIFETIME_S
        token = sas_token(base, self.address.key_name or "", self.address.key, expires_s)
        request = urllib.request.Request(
            f"{base}/namespaces/{self._namespace}/{path}", body, {"Authorization": token},
            method=verb,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
            return bytes(answer.read())

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            end_group(self._process, how)
            self._process = None
