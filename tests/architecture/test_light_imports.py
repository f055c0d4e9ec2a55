"""What starts often loads little: commands, and the dozen Python processes of a Spark query."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED_BUT_NOT_NEEDED = {
    "twinbus.cli": ["twinbus.broker.broker", "twinbus.drivers", "pyspark"],
    "twinbus.cli.syphon.spark_session": ["twinbus.drivers", "twinbus.broker.broker", "pyspark"],
    "twinbus.broker": ["twinbus.broker.broker"],
    "twinbus.spark.syphon.data_source": [
        "twinbus.drivers.amqp",
        "twinbus.mover.planning.chunk_plan",
        "pyarrow",
    ],
    "twinbus.spark.connection_refs": ["twinbus.drivers.amqp"],
}


@pytest.mark.parametrize("module", LOADED_BUT_NOT_NEEDED)
def test_importing_it_loads_no_more_than_it_needs(module: str) -> None:
    unwanted = LOADED_BUT_NOT_NEEDED[module]
    program = f"import sys, {module}; print([each for each in {unwanted} if each in sys.modules])"

    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module",
    ["twinbus", "twinbus.aio", "twinbus.sync", "twinbus.broker", "twinbus.testing"],
)
def test_dir_lists_the_public_names_and_loads_nothing(module: str) -> None:
    program = (
        f"import sys, {module} as it\n"
        "before = set(sys.modules)\n"
        "print(dir(it) == sorted(it.__all__), set(sys.modules) - before)"
    )

    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert told.stdout.strip() == "True set()"
