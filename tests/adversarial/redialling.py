"""Strangers in a process of their own: connections that are held, and dialled anew when they end.

    with strangers(broker.port, count=5_200, addresses=4, says=OPENED) as crowd:
        crowd.wait_until_held(512)
        ...
    crowd.dial_count    # how often they connected, all in all

Each line of its standard output is the number of connections that it holds, and how often it has
dialled. The process shares nothing with the test but the machine.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.adversarial.guards import wait_until
from tests.adversarial.raw_peer import frame, sasl_frame
from twinbus.amqp.codec.types import Symbol
from twinbus.amqp.frames import PROTOCOL_AMQP, PROTOCOL_SASL
from twinbus.amqp.performatives import Open, SaslInit

SILENT = b""
OPENED = (
    PROTOCOL_SASL
    + sasl_frame(SaslInit(Symbol("ANONYMOUS"), b"", "localhost"))
    + PROTOCOL_AMQP
    + frame(Open(container_id="stranger", hostname="localhost"))
)
HALF_A_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
TLS_BEGUN = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

REPORT_S = 0.1
READY_TIMEOUT_S = 30.0


class Crowd:
    """The attacking process, as far as the test knows it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.held_count = 0
        self.dial_count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.held_count, self.dial_count = json.loads(line)

    def wait_until_dialled(self, count: int) -> None:
        wait_until(
            lambda: self.dial_count >= count,
            lambda: f"only {self.dial_count} connections were made",
            READY_TIMEOUT_S,
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def strangers(
    port: int, *, count: int, addresses: int, says: bytes, ca_path: str = ""
) -> Iterator[Crowd]:
    """So many connections from 127.0.0.1 and the addresses behind it, while the block lasts.

    With ``ca_path`` they complete a TLS handshake first.
    """
    arguments = [str(port), str(count), str(addresses), says.hex(), ca_path]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments], stdout=subprocess.PIPE, text=True
    )
    crowd = Crowd(process)
    try:
        yield crowd
    finally:
        crowd.end()


# --- the process -------------------------------------------------------------------------------


class Redialler:
    """Holds connections in one thread."""

    def __init__(self, port: int, addresses: int, says: bytes, ca_path: str) -> None:
        self._port = port
        self._sources = [f"127.0.0.{number + 1}" for number in range(addresses)]
        self._says = says
        self._selector = selectors.DefaultSelector()
        self._connected: set[socket.socket] = set()
        self._context = ssl.create_default_context(cafile=ca_path) if ca_path else None
        self._greeting: set[socket.socket] = set()
        """In a TLS handshake."""
        self.dial_count = 0

    def dial(self) -> None:
        each = socket.socket()
        each.setblocking(False)
        with suppress(OSError):
            each.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        each.bind((self._sources[self.dial_count % len(self._sources)], 0))
        self.dial_count += 1
        error = each.connect_ex(("127.0.0.1", self._port))
        if error not in (0, errno.EINPROGRESS):
            each.close()
            return
        self._selector.register(each, selectors.EVENT_WRITE)

    def run(self, count: int) -> None:
        report_s = 0.0
        while True:
            for _ in range(min(200, count - len(self._selector.get_map()))):
                self.dial()
            for key, _events in self._selector.select(REPORT_S):
                self._serve(key.fileobj)
            if time.monotonic() > report_s:
                report_s = time.monotonic() + REPORT_S
                print(json.dumps([len(self._connected), self.dial_count]), flush=True)

    def _serve(self, each: socket.socket) -> None:  # type: ignore[override]
        try:
            if each not in self._connected:
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise ConnectionError
                self._selector.unregister(each)
                if self._context is not None:
                    each = self._context.wrap_socket(
                        each, server_hostname="localhost", do_handshake_on_connect=False
                    )
                    self._greeting.add(each)
                self._connected.add(each)
                self._selector.register(each, selectors.EVENT_READ)
                if each not in self._greeting:
                    self._speak(each)
                    return
            if each in self._greeting:
                each.do_handshake()  # type: ignore[attr-defined]
                self._greeting.discard(each)
                self._speak(each)
                return
            if each.recv(65_536):
                return
        except ssl.SSLWantReadError:
            return
        except OSError:
            pass
        self._connected.discard(each)
        self._greeting.discard(each)
        self._selector.unregister(each)
        each.close()

    def _speak(self, each: socket.socket) -> None:
        if self._says:
            each.send(self._says)


if __name__ == "__main__":
    port, count, addresses, says, ca_path = sys.argv[1:]
    Redialler(int(port), int(addresses), bytes.fromhex(says), ca_path).run(int(count))
