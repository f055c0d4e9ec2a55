"""A broker in a process of its own, as users run it: ``twinbus serve`` and real sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from twinbus.broker.access.sas import make_token
from twinbus.connection_string import parse_connection_string

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0


class BrokerProcess:
    """Starts, kills and restarts one broker, on the same port and data directory."""

    def __init__(
        self,
        data: Path | None,
        *,
        namespace: str = "demo",
        queues: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        module: str = "twinbus",
    ) -> None:
        self.namespace = namespace
        self._data = data
        self._queues = queues
        self._arguments = arguments
        self._environment = environment or {}
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.admin_port = 0
        self.connection_string = ""
        self.connection_strings: dict[str, str] = {}
        self.ca_path: str | None = None
        self.tls_port: int | None = None
        self.tls_connection_string = ""
        self.announcement: dict[str, Any] = {}
        self.log_path = None if data is None else data.parent / f"{data.name}.log"

    def start(self) -> BrokerProcess:
        self.launch()
        return self.found(json.loads(self._first_line()))

    def found(self, ready: dict[str, Any]) -> BrokerProcess:
        """Speak to the broker that announced itself like this, in whatever process it runs."""
        self.announcement = ready
        self.admin_port, self.ca_path = ready["admin_port"], ready["ca"]
        self.connection_strings = {
            name: each["connection_string"] for name, each in ready["namespaces"].items()
        }
        served = ready["namespaces"][self.namespace]
        self.port, self.connection_string = served["port"], served["connection_string"]
        self.tls_port = served["tls_port"]
        self.tls_connection_string = served["tls_connection_string"]
        return self

    def launch(self) -> None:
        """Start the process and do not wait until it is ready."""
        command = [sys.executable, "-m", self._module, "serve", "--output", "json"]
        command += ["--memory"] if self._data is None else ["--data", str(self._data)]
        command += ["--namespace", f"{self.namespace}:{self.port}"]
        command += ["--admin-port", str(self.admin_port), "--disk-free-mb", "16"]
        for queue in self._queues:
            command += ["--queue", queue]
        command += self._arguments
        log = subprocess.DEVNULL if self.log_path is None else self.log_path.open("ab")
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **self._environment},
        )
        if not isinstance(log, int):
            log.close()

    def _first_line(self) -> bytes:
        process = self._running()
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], START_TIMEOUT_S)[0]:
            raise TimeoutError("the broker did not say that it is ready")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker ended at once:\n{self.log()}")
        return line

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker was not started")
        return self._process

    def log(self) -> str:
        """What the broker wrote to standard error so far."""
        return "" if self.log_path is None else self.log_path.read_text(errors="replace")

    @property
    def data(self) -> Path | None:
        """The data directory; None when everything is in memory."""
        return self._data

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9: nothing is flushed, nobody is told."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ctrl-C: the exit code."""
        return self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> int:
        process = self._running()
        process.send_signal(number)
        code = process.wait(STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
        return code

    def restart(self) -> BrokerProcess:
        """Start again after kill() or stop(), on the same port."""
        return self.start()

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.is_alive:
            self.kill()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- what it uses ---------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """What it has allocated. Pages of files are the kernel's to drop and to bring back."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:  # Not Linux.
            return int(psutil.Process(self.pid).memory_info().rss)
        kilobytes = re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", status, re.MULTILINE)
        return sum(map(int, kilobytes)) << 10

    def fd_count(self) -> int:
        return int(psutil.Process(self.pid).num_fds())

    # -- administration -------------------------------------------------------------------

    def token(
        self,
        *,
        expires_in_s: int = 3600,
        port: int | None = None,
        path: str = "",
        rule: tuple[str, str] | None = None,
    ) -> str:
        """A SAS token, of the root rule and for the whole namespace unless told otherwise."""
        rule_name, key = self.root_rule if rule is None else rule
        return make_token(
            resource=f"sb://localhost:{self.port if port is None else port}/{path}",
            rule_name=rule_name,
            key=key,
            expires_s=int(time.time()) + expires_in_s,
        )

    @property
    def root_rule(self) -> tuple[str, str]:
        """Name and primary key of the rule in the connection string."""
        parsed = parse_connection_string(self.connection_string)
        return parsed.shared_access_key_name or "", parsed.shared_access_key or ""

    def http(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One HTTP request exactly as given: the status and the JSON answer, also of a refusal."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        shown = {} if token is None else {"Authorization": token}
        status, _told, answer = self.raw_http(
            method, path, content, headers={**shown, **(headers or {})}
        )
        return status, json.loads(answer) if answer else None

    def raw_http(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """One HTTP request exactly as given: status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=10)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        told = {name.lower(): value for name, value in response.getheaders()}
        return response.status, told, answer

    def admin(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the HTTP side with Manage; the JSON answer."""
        request = urllib.request.Request(
            f"http://localhost:{self.admin_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": self.token(port=self.admin_port)},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            content = response.read()
        return json.loads(content) if content else None

    def create_queue(self, path: str, **properties: Any) -> dict[str, Any]:
        created: dict[str, Any] = self.admin(
            "PUT", f"/namespaces/{self.namespace}/queues/{path}", properties
        )
        return created

    def fresh_queue(self, **properties: Any) -> str:
        """Create a queue that nobody else uses; its name."""
        name = f"queue-{uuid4().hex[:12]}"
        self.create_queue(name, **properties)
        return name

    def create_topic(self, path: str, *subscriptions: str, **properties: Any) -> dict[str, Any]:
        """A topic and, with their usual rule, its subscriptions."""
        where = f"/namespaces/{self.namespace}/topics/{path}"
        created: dict[str, Any] = self.admin("PUT", where, properties)
        for name in subscriptions:
            self.create_subscription(path, name)
        return created

    def create_subscription(self, topic: str, name: str, **properties: Any) -> dict[str, Any]:
        """A subscription; ``rules`` may be a list of rules as dictionaries."""
        where = f"/namespaces/{self.namespace}/topics/{topic}/subscriptions/{name}"
        created: dict[str, Any] = self.admin("PUT", where, properties)
        return created

    def fresh_topic(self, *subscriptions: str, **properties: Any) -> str:
        """Create a topic that nobody else uses; its name."""
        name = f"topic-{uuid4().hex[:12]}"
        self.create_topic(name, *subscriptions, **properties)
        return name

    def subscription(self, topic: str, name: str) -> dict[str, Any]:
        """Properties, counts and rules of a subscription."""
        where = f"/namespaces/{self.namespace}/topics/{topic}/subscriptions/{name}"
        found: dict[str, Any] = self.admin("GET", where)
        return found

    def delete_queue(self, path: str) -> None:
        self.admin("DELETE", f"/namespaces/{self.namespace}/queues/{path}")

    def queue(self, path: str) -> dict[str, Any]:
        """Properties and counts of a queue."""
        found: dict[str, Any] = self.admin("GET", f"/namespaces/{self.namespace}/queues/{path}")
        return found

    def counts(self, path: str) -> dict[str, int]:
        """How much is in a queue, by state; equal before and after when nothing got in or out."""
        found = self.queue(path)
        names = [name for name in found if name.endswith("_message_count")]
        return {name: found[name] for name in [*names, "size_in_bytes"]}

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.admin_port}/health", timeout=10
        ) as response:
            answer: dict[str, Any] = json.loads(response.read())
        return answer
