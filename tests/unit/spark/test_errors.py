"""What Spark says becomes one sentence."""

from __future__ import annotations

import os

import pytest

from twinbus.errors import ConfigurationError
from twinbus.spark.errors import sentence_in, without_traceback


def test_our_own_sentence_is_found_in_a_stack_trace() -> None:
    text = (
        "Traceback (most recent call last):\n  File ...\n"
        "twinbus.errors.ConfigurationError: 'orders' is away. Try again later.\n\tat java.lang"
    )
    assert sentence_in(text) == "'orders' is away. Try again later."


def test_the_reason_is_told_and_not_which_call_of_java_failed() -> None:
    text = (
        "An error occurred while calling o98.start.\n"
        ': java.io.IOException: Cannot run program "chmod": No such file or directory\n\tat java\n'
    )
    assert sentence_in(text) == (
        'java.io.IOException: Cannot run program "chmod": No such file or directory'
    )


def test_a_worker_without_twinbus_is_told_in_one_sentence() -> None:
    text = (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'twinbus'\n\tat"
    )
    sentence = sentence_in(text)
    assert "cannot import twinbus" in sentence and "PYSPARK_PYTHON" in sentence
    assert "Traceback" not in sentence


def test_no_reason_is_said_to_be_none() -> None:
    assert sentence_in("") == "Spark reported no reason"
    assert sentence_in("An error occurred while calling o98.start.") == "Spark reported no reason"


@pytest.mark.parametrize("is_worker", [True, False])
def test_only_a_process_of_spark_is_told_to_leave_the_traceback_out(
    monkeypatch: pytest.MonkeyPatch, is_worker: bool
) -> None:
    """It ends with the error; the process of an application goes on."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/somewhere" if is_worker else "")
    environment = dict(os.environ)
    monkeypatch.setattr(os, "environ", environment)
    with pytest.raises(ConfigurationError), without_traceback():
        raise ConfigurationError("it is wrong")
    assert ("SPARK_HIDE_TRACEBACK" in environment) is is_worker
