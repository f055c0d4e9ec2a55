"""No secret in logs, plans, event log, process list, checkpoint, output, error text, or in what a
syphon leaves in its directory."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.spark.brokers import SparkPair
from tests.spark.canary_application import PROVIDER
from tests.support.mover.brokers import Scene
from twinbus.common.connection_string import parse_connection_string

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 280
# The first test waits for the application.
pytestmark = pytest.mark.timeout(RUN_S_MAX + 20)
WRONG_KEY = "d3JvbmdDYW5hcnlLZXlUaGF0T3BlbnNOb3RoaW5nMDAwMDA="
FAR_KEY = "ZmFyQ2FuYXJ5S2V5T2ZBSG9zdFRoYXRJc05vdFRoZXJlMDA="
WORKING = {
    "env": ["written", "streamed"],
    "file": ["written", "streamed", "poured"],
    "provider": ["written", "asked_in_sql"],
    "raw": ["written", "looked_at", "asked_in_sql", "streamed", "poured"],
    "syphon": ["syphoned"],
    "syphon raw": ["syphoned"],
}
FAILING = {
    "raw": ["mistyped", "kept_as_table"],
    "wrong": ["looked_at", "streamed", "poured"],
    "far": ["written", "looked_at", "stopped"],
    "syphon wrong": ["syphoned"],
}


@dataclass(frozen=True)
class Aftermath:
    """What is left of a run of the application."""

    output: str = field(repr=False)
    shown: dict[str, bytes] = field(repr=False)
    """Everything that somebody could look at, by its place."""
    keys: tuple[str, ...] = field(repr=False)

    def leaks(self) -> list[str]:
        return [
            f"{place}: {needle[:8]}…"
            for place, content in self.shown.items()
            for needle in self.needles()
            if needle.encode() in content
        ]

    def needles(self) -> Iterator[str]:
        """A key as it is, and as it may be written elsewhere; and tokens made with one."""
        for key in self.keys:
            yield key
            yield urllib.parse.quote(key, safe="")
            # Without its last characters, which depend on what follows in a longer text.
            yield base64.b64encode(key.encode()).decode()[:-8]
        yield "&sig="
        yield "sig%3D"


def backlog_for(pair: SparkPair) -> dict[str, str]:
    """Three messages that wait in a backlog, and the options of a syphon for it."""
    scene = Scene(pair, queue_count=1)
    asyncio.run(scene.fill(scene.destination(), ["a", "b", "c"]))
    return {"primaryName": scene.name, "queues": ",".join(scene.queues)}


def talkative(directory: Path) -> Path:
    """A directory that makes every Python process that has it in its path log all we have to say:
    workers of Spark have no other place where somebody could ask for it."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        "import logging\n"
        "logging.basicConfig()\n"
        "logging.getLogger('twinbus').setLevel(logging.DEBUG)\n"
        "logging.getLogger('twinbus').debug('talkative')\n"
    )
    return directory


@pytest.fixture(scope="module")
def aftermath(pair: SparkPair, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """One application that names a namespace in every way there is; one run for all tests."""
    directory = tmp_path_factory.mktemp("canary")
    hidden = tmp_path_factory.mktemp("hidden")
    right = pair.primary.connection_string
    key = str(parse_connection_string(right).shared_access_key)

    def hidden_file(name: str, text: str) -> str:
        path = hidden / name
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    right_file = hidden_file("right", right)
    wrong_file = hidden_file("wrong", right.replace(key, WRONG_KEY))
    far = (
        "Endpoint=sb://localhost:1;SharedAccessKeyName=app;"
        f"SharedAccessKey={FAR_KEY};UseDevelopmentEmulator=true"
    )
    ways: dict[str, dict[str, str]] = {
        "env": {"connectionStringEnv": "CANARY_RAW"},
        # Its desk listens on another address than usual, as if for other machines.
        "file": {"connectionStringFile": right_file, "driverHost": "127.0.0.2"},
        "provider": {"credentialProvider": PROVIDER},
        "raw": {},
        "wrong": {"connectionStringFile": wrong_file},
        "far": {"connectionStringFile": hidden_file("far", far)},
    }
    for options in ways.values():
        options["queue"] = pair.primary.fresh_queue()
    second = str(pair.secondary_file)
    ways |= {
        "syphon": {
            "primaryConnectionStringEnv": "CANARY_RAW",
            "secondaryConnectionStringFile": second,
        },
        "syphon raw": {"secondaryConnectionStringFile": second},
        "syphon wrong": {
            "primaryConnectionStringFile": wrong_file,
            "secondaryConnectionStringFile": wrong_file,
        },
    }
    for name in ("syphon", "syphon raw", "syphon wrong"):
        ways[name] |= backlog_for(pair)
    raw = {"raw": ["connectionString"], "syphon raw": ["primaryConnectionString"]}
    plan = [
        {
            "name": name,
            "options": options,
            "raw": raw.get(name, []),
            "deeds": WORKING.get(name, []) + FAILING.get(name, []),
        }
        for name, options in ways.items()
    ]
    (directory / "plan.json").write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.canary_application", str(directory)],
        cwd=ROOT,
        env={
            **os.environ,
            "CANARY_RAW": right,
            "CANARY_FILE": right_file,
            "PYTHONPATH": os.pathsep.join(
                [str(talkative(hidden / "talkative")), os.environ.get("PYTHONPATH", "")]
            ),
        },
        capture_output=True,
        timeout=RUN_S_MAX,
    )
    shown = {"stdout": done.stdout, "stderr": done.stderr}
    for path in directory.rglob("*"):
        if path.is_file():
            shown[str(path.relative_to(directory))] = path.read_bytes()
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    keys = (key, pair.secondary.root_rule[1], WRONG_KEY, FAR_KEY)
    return Aftermath(done.stdout.decode(), shown, keys)


@pytest.mark.parametrize("way", WORKING)
def test_every_way_to_name_a_namespace_works(aftermath: Aftermath, way: str) -> None:
    for deed in WORKING[way]:
        assert f"{way} {deed}: done 3" in aftermath.output


@pytest.mark.parametrize("way", FAILING)
def test_what_cannot_work_fails_aloud(aftermath: Aftermath, way: str) -> None:
    for deed in FAILING[way]:
        # A syphon whose credentials are wrong moves nothing and has a sentence in its status.
        told = "done 0" if deed == "syphoned" else "failed"
        assert f"{way} {deed}: {told}" in aftermath.output


def test_a_mistyped_option_is_named_without_its_value(aftermath: Aftermath) -> None:
    assert "conectionstring" in aftermath.output.lower()


def test_no_secret_is_shown_anywhere(aftermath: Aftermath) -> None:
    assert aftermath.leaks() == []


def test_the_places_where_secrets_could_be_were_looked_at(aftermath: Aftermath) -> None:
    """Of every kind there is something, and it is what it should be."""
    places = aftermath.shown
    assert places["stderr"].count(b"DEBUG:twinbus:talkative") > 5, "workers' logs are in it"
    assert b"== Physical Plan ==" in places["stdout"]
    assert b"spark.eventLog.dir" in places["processes.txt"]
    assert any(place.startswith("events/") for place in places)
    assert any("/checkpoint/" in place for place in places)
    assert any("/rows/" in place for place in places)
    assert any(place.endswith("/state/status.json") for place in places)
    assert any("/state/receipts/" in place for place in places)
    assert any("/state/checkpoints/" in place for place in places)
    events = b"".join(content for place, content in places.items() if place.startswith("events/"))
    assert b"SparkListenerSQLExecutionStart" in events and b"SparkListenerEnvironment" in events


def test_a_leak_is_seen() -> None:
    key = "c2VjcmV0S2V5T2ZBQ2FuYXJ5MDAwMDAwMDAwMDAwMDAwMDA="
    for leaked in (key, f"x{urllib.parse.quote(key, safe='')}y", "sr=a&sig=b"):
        assert Aftermath("", {"log": f"before {leaked} after".encode()}, (key,)).leaks()
