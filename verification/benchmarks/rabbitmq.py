"""A RabbitMQ node of our own: free ports, a directory of its own, no system service.

The node runs as the current user straight from the package's files. Its name server (epmd) gets a
port of its own too, and is asked to leave when the node has stopped: nothing stays behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from verification.benchmarks.processes import BenchError, end_group, free_port, spawn, wait_for
from verification.benchmarks.rabbitmq_wire import Channel

INSTALLER = Path(__file__).with_name("install_rabbitmq.sh")
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SERVER.with_name("rabbitmqctl")

# A cold boot takes 5 to 10 s on two cores; a restart with a million messages reads its log first.
START_WAIT_S_MAX = 300.0

# Alarms would block the publisher and flatter nobody: give the node the room it asks for.
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
vm_memory_high_watermark.relative = 0.8
disk_free_limit.absolute = 50MB
log.file.level = warning
log.console = false
loopback_users = none
"""


def install() -> None:
    """Make sure that the package is there, or fail with the installer's sentence."""
    done = subprocess.run(
        [str(INSTALLER)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise BenchError("RabbitMQ is the peer of these benchmarks and could not be installed")


class RabbitNode:
    """One node; ``start`` may be called again after ``stop`` or ``kill`` with the same data."""

    def __init__(self, directory: Path, plugins: Sequence[str] = ()) -> None:
        self.port = free_port()
        self._directory = directory
        self._epmd_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port))
        (directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        self._env = self._environment()

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))}
        here = self._directory
        return inherited | {
            "HOME": str(here),  # the Erlang cookie lives in the home directory
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(here / "mnesia"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(here / "node.pid"),
            "RABBITMQ_CONF_ENV_FILE": str(here / "no-env.conf"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    @property
    def pid(self) -> int:
        """The Erlang VM itself (the process that we started is a shell around it)."""
        return int((self._directory / "node.pid").read_text())

    def start(self) -> None:
        """Return when the node answers on its port."""
        (self._directory / "node.pid").unlink(missing_ok=True)
        self._process = spawn([str(SERVER)], self._directory / "console.log", self._env)
        wait_for("the start of RabbitMQ", self._answers, START_WAIT_S_MAX)

    def _answers(self) -> bool | None:
        if self._process is not None and self._process.poll() is not None:
            raise BenchError(f"RabbitMQ ended while starting; see {self._directory}/console.log")
        try:
            Channel(self.port).close()
        except OSError:
            return None
        return True if (self._directory / "node.pid").exists() else None

    def control(self, *arguments: str) -> str:
        """What rabbitmqctl answers."""
        done = subprocess.run(
            [str(CONTROL), "--quiet", *arguments], env=self._env, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise BenchError(f"rabbitmqctl {arguments[0]} failed: {done.stderr.strip()[-300:]}")
        return done.stdout

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        end_group(self._process, how)
        self._process = None
        subprocess.run(["epmd", "-kill"], env=self._env, capture_output=True)
