"""What Spark says becomes one sentence."""

from __future__ import annotations

from twinbus.spark.troubles import sentence_in


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


def test_no_reason_is_said_to_be_none() -> None:
    assert sentence_in("") == "Spark gave no reason"
    assert sentence_in("An error occurred while calling o98.start.") == "Spark gave no reason"
