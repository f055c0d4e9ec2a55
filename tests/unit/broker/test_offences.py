"""The log of offences: so many lines by kind and address, so many of all, and a sum of the rest."""

from __future__ import annotations

import logging

import pytest

from twinbus.broker.violation_log import (
    KEYS_MAX,
    LINES_PER_MINUTE_MAX,
    LINES_PER_S_MAX,
    LineLimit,
    LogFloodFilter,
    ViolationLog,
)


def test_a_flood_is_ten_lines_and_a_sum(caplog: pytest.LogCaptureFixture) -> None:
    """M13: log lines are bounded."""
    log = ViolationLog("demo")
    for number in range(500):
        log.note("a token was refused", now_s=100 + number / 1_000, address="10.0.0.1")
    assert len(caplog.messages) == LINES_PER_S_MAX
    caplog.clear()

    log.note("another", now_s=101, address="10.0.0.1")

    assert caplog.messages == [
        "Namespace demo: 490 similar messages suppressed",
        "Namespace demo: another",
    ]


def test_one_address_writes_ten_lines_of_a_kind_in_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """M13: whoever keeps going writes no more than whoever begins, and hides nobody else."""
    log = ViolationLog("demo")
    for tenth in range(600):
        log.note("again", now_s=tenth / 10, address="10.0.0.1")
    assert caplog.messages.count("Namespace demo: again") == LINES_PER_MINUTE_MAX

    log.note("again", now_s=59.99, address="10.0.0.2")
    log.note("another kind", now_s=59.99, address="10.0.0.1")
    log.note("again", now_s=60.5, address="10.0.0.1")
    assert caplog.messages.count("Namespace demo: again") == LINES_PER_MINUTE_MAX + 2
    assert "Namespace demo: another kind" in caplog.messages


def test_an_hour_of_a_flood_is_a_few_kilobytes(caplog: pytest.LogCaptureFixture) -> None:
    """M13: from a thousand addresses at once, too."""
    log = ViolationLog("demo")
    for second in range(3_600):
        for number in range(20):
            log.note("a flood", now_s=second + number / 50, address=f"10.0.{number % 4}.{second}")
    lines = sum(len(message) + 40 for message in caplog.messages)
    assert lines < 3_600 * LINES_PER_S_MAX * 80
    assert any("similar messages suppressed" in message for message in caplog.messages)


def test_the_first_line_is_never_held_back(caplog: pytest.LogCaptureFixture) -> None:
    ViolationLog("demo").note("first", now_s=0.0)

    assert caplog.messages == ["Namespace demo: first"]


def test_what_is_remembered_is_bounded() -> None:
    """M13: memory, too."""
    limit = LineLimit()
    for number in range(10 * KEYS_MAX):
        assert limit.takes(number, 0.0, 1)
    assert len(limit) == KEYS_MAX


def failed() -> ValueError:
    try:
        raise ValueError("what the peer sent\nwith a line break")
    except ValueError as error:
        return error


def test_a_stranger_causes_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """M13: the kind of the error and its place, without what the peer sent."""
    ViolationLog("demo").note_mistake(
        "a frame failed", failed(), 0.0, address="10.0.0.1", is_stranger=True
    )

    assert "Traceback" not in caplog.text
    assert "what the peer sent" not in caplog.text
    assert "ValueError in failed" in caplog.text


def test_a_mistake_has_one_traceback_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """M13: whoever finds one cannot write the disk full with it."""
    log = ViolationLog("demo")
    for number in range(100):
        log.note_mistake("a frame failed", failed(), number, address="10.0.0.1", is_stranger=False)

    assert caplog.text.count("Traceback") == 2


@pytest.fixture
def filtered() -> logging.Logger:
    logger = logging.Logger("elsewhere")
    handler = Lines()
    handler.addFilter(LogFloodFilter(lines_max=3))
    logger.addHandler(handler)
    return logger


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_the_log_of_a_process_takes_so_many_lines_of_one_sentence(
    filtered: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M13: whatever library writes them."""
    now_s = [0.0]
    monkeypatch.setattr("twinbus.broker.violation_log.time.monotonic", lambda: now_s[0])
    (handler,) = filtered.handlers
    assert isinstance(handler, Lines)
    for number in range(50):
        filtered.warning("connection %d failed", number)
    filtered.warning("something else")
    assert handler.lines[3:] == ["something else"]

    now_s[0] = 61.0
    filtered.warning("connection %d failed", 50)
    assert handler.lines[4:] == ["connection 50 failed (47 similar messages suppressed)"]
