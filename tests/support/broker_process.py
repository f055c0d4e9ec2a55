"""A broker in a process of its own, with everything that tests ask of one."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil

from twinbus.testing.broker_process import BrokerProcessHandle


class BrokerProcess(BrokerProcessHandle):
    """Starts, kills and restarts one broker; shows its memory, and changes what it has."""

    def __init__(
        self,
        data: Path | None,
        *,
        namespace: str = "demo",
        queues: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            data,
            namespace=namespace,
            queues=queues,
            arguments=("--disk-free-mb", "16", *arguments),
            environment=environment,
        )
        self.connection_strings: dict[str, str] = {}
        self.ca_path: str | None = None
        self.tls_port: int | None = None
        self.tls_connection_string = ""

    def found(self, ready: dict[str, Any]) -> Self:
        super().found(ready)
        self.ca_path = ready["ca"]
        self.connection_strings = {
            name: each["connection_string"] for name, each in ready["namespaces"].items()
        }
        served = ready["namespaces"][self.namespace]
        self.tls_port = served["tls_port"]
        self.tls_connection_string = served["tls_connection_string"]
        return self

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
        """What it says to whoever may manage its namespace."""
        token = self.token(port=self.admin_port)
        status, answer = self.http("GET", "/health", token=token)
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found
