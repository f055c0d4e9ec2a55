"""The files around the code: container, workflows, hooks, and the pages for contributors."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml

from twinbus.cli import app
from twinbus.cli.broker.run import namespace_specs
from verification.wheel_check import constraints_in, problems_in

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read_yaml(name: str | Path) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


# -- Dockerfile and compose.yaml ----------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), with continued lines joined."""
    lines = [line for line in read("Dockerfile").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    words = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, rest) for name, rest in words]


def instruction(name: str) -> str:
    """The last one of its name: that of the image, not of the stage that builds."""
    return [rest for each, rest in instructions() if each == name][-1]


def parsed_command(words: list[str]) -> dict[str, Any]:
    """The options of ``twinbus serve`` as the command line itself reads them."""
    assert words[0] == "serve"
    command: Any = typer.main.get_command(app)
    context = command.commands["serve"].make_context("serve", words[1:])
    return dict(context.params)


def amqp_ports(options: dict[str, Any]) -> list[int]:
    specs = namespace_specs(
        options["namespace"] or [], options["queue"] or [], options["topic"] or [],
        options["subscription"] or [], options["config"],
    )  # fmt: skip
    return [spec.port for spec in specs]


def image_options() -> dict[str, Any]:
    assert json.loads(instruction("ENTRYPOINT")) == ["twinbus"]
    return parsed_command(json.loads(instruction("CMD")))


def test_the_image_copies_what_exists_and_what_the_build_may_see() -> None:
    ignored = [line for line in read(".dockerignore").splitlines() if not line.startswith("#")]
    assert ignored[0] == "*"
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    }
    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []
    # What the build of the wheel reads besides the code.
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml"} <= copied


def test_the_image_serves_the_ports_and_the_directory_that_it_names() -> None:
    options = image_options()
    exposed = {int(port) for port in instruction("EXPOSE").split()}
    assert exposed == {*amqp_ports(options), options["admin_port"]}
    assert json.loads(instruction("VOLUME")) == [str(options["data"])]
    assert options["host"] == "0.0.0.0", "a published port reaches nothing else"


def test_the_image_asks_the_broker_for_its_health() -> None:
    check = instruction("HEALTHCHECK").partition(" CMD ")[2]
    program, flag, code = json.loads(check)
    compile(code, "health check", "exec")
    [url] = re.findall(r"http://[^']+", code)
    assert (program, flag) == ("python", "-c")
    assert (urlsplit(url).port, urlsplit(url).path) == (image_options()["admin_port"], "/health")


def test_the_image_does_not_run_as_root_and_its_user_owns_the_data() -> None:
    user = instruction("USER")
    assert user.isdigit() and int(user) > 0
    made = " ".join(rest for name, rest in instructions() if name == "RUN")
    assert f"--uid {user}" in made and "--owner twinbus" in made


def test_the_image_has_a_python_that_the_package_supports() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    versions = {re.match(r"python:(\d+\.\d+)-", base)[1] for base in bases}  # type: ignore[index]
    assert len(versions) == 1 and versions <= set(PYTHONS)


def test_the_image_takes_its_versions_from_the_lock() -> None:
    [pattern] = re.findall(r"--extended-regexp '([^']+)' requirements.lock", read("Dockerfile"))
    lock = read("requirements.lock")
    assert re.findall(pattern, lock, re.MULTILINE) == constraints_in(lock)


SERVICES: dict[str, Any] = read_yaml("compose.yaml")["services"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_a_real_command_with_its_ports_and_its_volume(service: str) -> None:
    described = SERVICES[service]
    options = parsed_command(described["command"])
    [amqp] = amqp_ports(options)
    published = [port.split(":") for port in described["ports"]]
    assert {host for host, _outside, _inside in published} == {"127.0.0.1"}
    assert {int(inside) for _host, _outside, inside in published} == {amqp, options["admin_port"]}
    # A connection string names the port that the broker knows.
    assert [str(amqp)] * 2 in [port[1:] for port in published]
    assert options["namespace"] == [f"{service}:{amqp}"] and options["tls_name"] == [service]
    [(volume, directory)] = [each.split(":") for each in described["volumes"]]
    assert volume in read_yaml("compose.yaml")["volumes"]
    assert directory == str(options["data"]) == json.loads(instruction("VOLUME"))[0]
    # The health check of the image looks there.
    assert options["admin_port"] == image_options()["admin_port"]
    assert "user" not in described and described["read_only"] and described["build"] == "."


def test_the_services_are_a_pair_that_shares_nothing() -> None:
    assert list(SERVICES) == ["primary", "secondary"]
    for part in ("ports", "volumes"):
        used = [each.rpartition(":")[0] for service in SERVICES.values() for each in service[part]]
        assert len(used) == len(set(used))


# -- workflows, hooks, templates ----------------------------------------------------------------


def shell_lines(workflow: Path) -> list[str]:
    """Every command of a workflow, those of a matrix too."""
    found: list[str] = []
    for job in read_yaml(workflow)["jobs"].values():
        found += job.get("strategy", {}).get("matrix", {}).get("command", [])
        found += [step["run"] for step in job["steps"] if "run" in step]
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_targets_that_exist(workflow: Path) -> None:
    made = [line.split()[1:] for line in shell_lines(workflow) if line.startswith("make ")]
    named = {word for words in made for word in words if "=" not in word}
    assert named and named <= make_targets()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read_and_end_in_time(workflow: Path) -> None:
    described = read_yaml(workflow)
    assert described["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in described["jobs"].values())


def test_the_workflow_runs_the_commands_of_the_readme_with_every_supported_python() -> None:
    shown = re.findall(r"^    \$ (make \w+)", read("README.md"), re.MULTILINE)
    assert shown == ["make demo", "make test"]
    assert re.search(r"^check:.* test$", read("Makefile"), re.MULTILINE), "it includes make test"
    jobs = read_yaml(".github/workflows/check.yml")["jobs"]
    for name, commands in (("linux", ["make demo", "make check"]), ("macos", ["make demo"])):
        assert jobs[name]["strategy"]["matrix"]["python"] == PYTHONS
        ran = [step["run"] for step in jobs[name]["steps"] if "run" in step]
        assert set(commands) <= set(ran)


def test_the_package_names_the_pythons_that_the_workflow_runs() -> None:
    prefix = "Programming Language :: Python :: "
    named = [
        each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)
    ]
    assert [each for each in named if "." in each] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_hooks_are_targets_of_the_gate_and_need_no_network() -> None:
    config = read_yaml(".pre-commit-config.yaml")
    assert [each["repo"] for each in config["repos"]] == ["local"]
    [gate] = re.findall(r"^check: (.+)$", read("Makefile"), re.MULTILINE)
    hooks = config["repos"][0]["hooks"]
    assert {hook["entry"].split()[-1] for hook in hooks} <= set(gate.split())
    assert {hook["language"] for hook in hooks} == {"system"}


def test_every_file_that_is_linted_is_there() -> None:
    recipe = read("Makefile").partition("\nlint-files:")[2].partition("\n\n")[0]
    words = [word for word in recipe.split() if re.match(r"\.?\w[\w./*-]*$", word)]
    files = [word for word in words if "/" in word or word.startswith(".") or "." in word]
    checked = [word for word in files if not word.startswith("vendor.")]
    assert len(checked) > 5
    assert [word for word in checked if not list(ROOT.glob(word))] == []


# -- pages --------------------------------------------------------------------------------------

_PATH = re.compile(r"`((?:src|tests|docs|verification|teeth|examples|\.github)/[\w./*-]+)`")


def test_every_path_that_the_guide_for_contributors_names_exists() -> None:
    named = _PATH.findall(read("CONTRIBUTING.md"))
    assert len(named) > 30
    assert sorted({path for path in named if not (ROOT / path).exists()}) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (path, name)
        for name, path in re.findall(
            r"`(\w+)` (?:in|of)\s+`((?:src|tests)/[\w./-]+\.py)`", read("CONTRIBUTING.md")
        )
    ],
)
def test_a_name_that_the_guide_places_in_a_file_is_there(path: str, name: str) -> None:
    assert re.search(rf"\b{name}\b", read(path))


def test_the_guide_has_every_tier_and_every_long_run() -> None:
    page = read("CONTRIBUTING.md")
    shown = {name for name in re.findall(r"make ([a-z-]+)", page) if name in make_targets()}
    not_tests = {"help", "venv", "browser", "demo", "fmt", "format-check", "lint", "types", "lock",
                 "lock-docs", "docs-serve", "clean", "interop"}  # fmt: skip
    assert make_targets() - not_tests <= shown


def glossary() -> list[str]:
    return re.findall(r"^\*\*(.+?)\.\*\*", read("docs/GLOSSARY.md"), re.MULTILINE)


def test_the_glossary_is_in_alphabetical_order_and_has_each_word_once() -> None:
    words = [word.lower() for word in glossary()]
    assert words == sorted(set(words))


def test_the_glossary_explains_the_words_of_the_field() -> None:
    wanted = {
        "Backlog queue", "Chunk", "Dead letter", "Deferral", "Diverted", "Entity",
        "Failover interval", "Journal", "Lock", "Metering", "Mover", "Pair", "Ping", "Preflight",
        "Primary", "Receipt",
        "Reconciliation", "Secondary", "Syphon", "Work order",
    }  # fmt: skip
    assert wanted <= set(glossary())


SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    page = read("CHANGELOG.md")
    versions = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    form = re.compile(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}$")
    assert [version for version in versions[1:] if not form.match(version)] == []
    for part in page.split("\n## ")[1:]:
        sections = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert sections == [each for each in SECTIONS if each in sections], "each once, in order"


def test_the_security_policy_says_how_to_report_in_private() -> None:
    page = read("SECURITY.md")
    assert "private vulnerability reporting" in page and "(docs/SECURITY.md)" in page
    assert "@" not in page, "there is no such address"


# -- the check of the wheel ---------------------------------------------------------------------


def test_the_versions_of_a_lock_are_read_without_hashes_and_markers() -> None:
    lock = (
        'a-b==1.2 \\\n    --hash=sha256:00\nc.d==3 ; sys_platform != "win32" \\\n    # via x==4\n'
    )
    assert constraints_in(lock) == ["a-b==1.2", "c.d==3"]


@pytest.mark.parametrize(
    ("result", "count"),
    [
        ({"delivered": 5, "lost": 0, "unexpected": 0, "failed_sends": 0}, 0),
        ({"delivered": 5, "lost": 1, "unexpected": 0, "failed_sends": 2}, 2),
        ({"delivered": 0, "lost": 0, "unexpected": 0, "failed_sends": 0}, 1),
        ({}, 4),
    ],
)
def test_a_bad_result_of_the_demo_is_noticed(result: dict[str, int], count: int) -> None:
    assert len(problems_in(result)) == count
