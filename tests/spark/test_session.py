"""The session on this machine: its Java, its Python, its archive of classes, and its silence."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.other_python import python_without_twinbus
from twinbus.errors import ConfigurationError
from twinbus.spark.registration import OPTIONS_REGEX, with_ours
from twinbus.spark.runtime import java as java_module
from twinbus.spark.runtime import session
from twinbus.spark.runtime.cache import cache_directory
from twinbus.spark.runtime.class_archive import ClassArchive
from twinbus.spark.runtime.java import find_java
from twinbus.spark.runtime.session import SETTINGS
from twinbus.spark.runtime.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- Java ---------------------------------------------------------------------------------


def fake_java(home: Path, says: str, exit_code: int = 0) -> dict[str, str]:
    """An environment whose Java says so of itself."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
    path.chmod(0o755)
    return {"JAVA_HOME": str(home)}


def test_the_java_of_this_machine_will_do() -> None:
    java = find_java()
    assert java.major >= 17 and java.path.is_file()


@pytest.mark.parametrize(
    ("says", "major"), [('openjdk version "21.0.8" 2025-07-15', 21), ('java version "26-ea"', 26)]
)
def test_a_newer_java_will_do(tmp_path: Path, says: str, major: int) -> None:
    assert find_java(fake_java(tmp_path, says)).major == major


@pytest.mark.parametrize(
    ("says", "exit_code", "error"),
    [
        ('java version "1.8.0_292"', 0, "Java 17 or later.* is Java 8"),
        ('openjdk version "11.0.2"', 0, "is Java 11"),
        ("unknown", 0, "version"),
        ("broken", 1, "cannot be executed"),
    ],
)
def test_a_java_that_will_not_do_is_said_in_a_sentence(
    tmp_path: Path, says: str, exit_code: int, error: str
) -> None:
    with pytest.raises(ConfigurationError, match=error):
        find_java(fake_java(tmp_path, says, exit_code))


def test_no_java_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(ConfigurationError, match="Install OpenJDK 17"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigurationError, match=f"JAVA_HOME '{tmp_path}'"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize("on_path", ["nothing", "Java 11"])
def test_the_java_from_pip_is_taken_when_there_is_no_other(tmp_path: Path, on_path: str) -> None:
    """Also when the one on PATH is too old; and it starts with what Spark's launcher asks for."""
    cache, bin_dir = tmp_path / "cache", tmp_path / "old" / "bin"
    fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    path = bin_dir if on_path == "Java 11" else tmp_path
    java = find_java({"PATH": str(path), "XDG_CACHE_HOME": str(cache)})
    assert java.home is not None and java.path == java.home / "bin" / "java"
    assert java.major == 21
    subprocess.run(
        [java.path, "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"],
        check=True,
        capture_output=True,
    )


def test_a_java_home_that_somebody_set_is_taken_at_its_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"JAVA_HOME '{tmp_path}'"):
        find_java({"JAVA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})


def test_the_java_from_pip_needs_a_directory_of_its_own(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    with pytest.raises(ConfigurationError, match="XDG_CACHE_HOME"):
        find_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(taken)})


# -- Python -------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """A Spark with odd characters in its path."""
    home = tmp_path / "it's a $home"
    (home / "python" / "lib").mkdir(parents=True)
    (home / "python" / "lib" / "pyspark.zip").touch()
    return home


def test_a_quick_python_leaves_out_the_archives_of_pyspark_only(
    spark_home: Path, cache: dict[str, str]
) -> None:
    python = worker_python(spark_home, cache)
    archives = [f"{spark_home}/python/lib/{name}.zip" for name in ("pyspark", "py4j-0.10-src")]
    path = [*archives, "/jars/spark-core.jar", "/a b", *archives, "/mine.zip"]
    code = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, sys.argv[1], sep='|')"
    shown = subprocess.run(
        [python, "-c", code, "one word"],
        env={**os.environ, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.strip()
    assert shown == f"/jars/spark-core.jar:/a b:/mine.zip|{sys.executable}|one word"


def test_a_quick_python_is_made_once_and_repaired(spark_home: Path, cache: dict[str, str]) -> None:
    path = Path(worker_python(spark_home, cache))
    before = path.stat().st_mtime_ns
    assert worker_python(spark_home, cache) == str(path)
    assert path.stat().st_mtime_ns == before
    path.write_text("#!/bin/sh\nexit 1\n")
    worker_python(spark_home, cache)
    assert "exec" in path.read_text() and os.access(path, os.X_OK)


def test_without_a_cache_or_archives_the_plain_python_does(
    spark_home: Path, tmp_path: Path, cache: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    assert worker_python(spark_home, {"XDG_CACHE_HOME": str(tmp_path / "file")}) == sys.executable
    assert worker_python(tmp_path, cache) == sys.executable


def test_a_chosen_python_without_twinbus_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever PYSPARK_PYTHON says: Spark's processes could not load our sources."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    own = worker_python(Path(str(import_module("pyspark").__path__[0])))
    for chosen in (python_without_twinbus(tmp_path), "/no/such/python", ""):
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
        assert session._python() == own
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(link))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert session._python() == str(link)


def test_the_cache_is_for_its_owner_alone(cache: dict[str, str]) -> None:
    directory = cache_directory(cache)
    assert directory is not None and directory.stat().st_mode & 0o077 == 0


# -- classes ------------------------------------------------------------------------------


def run_java(options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(find_java().path), *options.split(), "-version"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def test_a_whole_draft_gets_its_name_at_the_next_start(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, find_java(), tmp_path, "4.3.0")
    assert archive.java_options(may_make=False) == ""
    with run_java(archive.java_options(may_make=True)) as jvm:
        assert jvm.communicate(timeout=60)[0] == b""
    assert [path.suffix for path in tmp_path.iterdir()] == [".draft"]
    assert "SharedArchiveFile" in archive.java_options(may_make=False)
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsa"]


def test_a_draft_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, find_java(), tmp_path, "4.3.0")
    draft = archive.path.with_suffix(".77.draft")
    draft.write_bytes(bytes(4096) + b"classes")
    assert "ArchiveClassesAtExit" in archive.java_options(may_make=True)
    assert draft.is_file()


def test_an_archive_that_does_not_fit_is_ignored_in_silence(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, find_java(), tmp_path, "4.3.0")
    archive.path.write_bytes(b"not an archive" * 1000)
    with run_java(archive.java_options(may_make=False)) as jvm:
        assert jvm.communicate(timeout=30)[0] == b"" and jvm.returncode == 0


def test_another_java_or_spark_has_another_archive(tmp_path: Path) -> None:
    java = find_java()
    first = ClassArchive(tmp_path, java, tmp_path / "one", "4.3.0")
    assert first.path != ClassArchive(tmp_path, java, tmp_path / "two", "4.3.0").path
    assert first.path != ClassArchive(tmp_path, java, tmp_path / "one", "4.3.1").path


def test_drafts_of_killed_jvms_are_swept(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, find_java(), tmp_path, "4.3.0")
    old, young = (archive.path.with_suffix(f".{number}.draft") for number in (1, 2))
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    archive.java_options(may_make=True)
    assert not old.exists() and young.exists()


# -- settings -----------------------------------------------------------------------------


def test_what_a_user_hides_stays_hidden() -> None:
    assert with_ours("(?i)mine", OPTIONS_REGEX) == f"((?i)mine)|({OPTIONS_REGEX})"
    assert with_ours(with_ours("(?i)mine", OPTIONS_REGEX), OPTIONS_REGEX).count("mine") == 1
    assert with_ours(None, OPTIONS_REGEX) == OPTIONS_REGEX


def python_of_pyspark(_row: object) -> str:
    import pyspark

    return str(pyspark.__file__)


def test_a_local_session_is_as_it_should_be(spark: SparkSession) -> None:
    assert spark.sparkContext.uiWebUrl is None
    for name, value in SETTINGS.items():
        assert spark.sparkContext.getConf().get(name) == value
    assert spark.sparkContext.master == "local[2,4]"
    assert "SPARK_LOCAL_IP" not in os.environ or os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_workers_take_the_compiled_pyspark(spark: SparkSession) -> None:
    (where,) = spark.sparkContext.parallelize([0], 1).map(python_of_pyspark).collect()
    assert ".zip" not in where


def test_a_running_session_is_used(spark: SparkSession) -> None:
    from twinbus.spark.runtime.session import local_session

    assert local_session("another", more={"spark.sql.shuffle.partitions": "7"}) is spark


def test_a_read_of_nothing_loads_modules_in_its_tasks(spark: SparkSession) -> None:
    from twinbus.spark.runtime.warm_up import FORMAT, NothingSource

    spark.dataSource.register(NothingSource)
    nothing = spark.read.format(FORMAT).option("tasks", "2")

    assert nothing.option("modules", "json").load().collect() == []
    with pytest.raises(Exception, match="no_such_module"):
        nothing.option("modules", "no_such_module").load().collect()


def test_what_fails_while_warming_up_is_left_to_others(spark: SparkSession) -> None:
    from twinbus.spark.runtime.warm_up import READS, wait_for_reads, warm_up_reads

    warm_up_reads(spark, ["no_such_module"], 2)
    (reading,) = (each for each in threading.enumerate() if each.name == READS)
    wait_for_reads()

    assert not reading.is_alive()
    assert spark.range(1).count() == 1


def test_preparing_is_done_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from twinbus.spark.runtime.prepare import prepare
    from twinbus.spark.runtime.session import archive_here

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = archive_here()
    assert archive is not None
    archive.path.write_bytes(b"an archive")

    assert prepare() == archive.path


def test_preparing_needs_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from twinbus.spark.runtime.prepare import prepare

    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")

    with pytest.raises(ConfigurationError, match="XDG_CACHE_HOME"):
        prepare()


def test_a_rehearsal_writes_one_row(spark: SparkSession, tmp_path: Path) -> None:
    from twinbus.spark.runtime.prepare import FORMAT, RehearsalSource

    spark.dataSource.register(RehearsalSource)
    rows = spark.readStream.format(FORMAT).load().writeStream.format("parquet")
    rows = rows.option("path", f"{tmp_path}/rows").option("checkpointLocation", f"{tmp_path}/c")
    assert rows.trigger(availableNow=True).start().awaitTermination(60)

    assert [row.name for row in spark.read.parquet(f"{tmp_path}/rows").collect()] == ["rehearsal"]
