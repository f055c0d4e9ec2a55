"""What the SDK logs about calls of ours."""

from __future__ import annotations

import logging

import pytest
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import _base_handler_async

from twinbus.drivers.azure_sdk.sdk_log import without_traceback


def fail() -> None:
    """As the SDK treats an error that it does not know."""
    try:
        raise ValueError("Management Operation error occurred.")
    except ValueError as error:
        PyamqpTransport.create_servicebus_exception(_base_handler_async._LOGGER, error)


def test_an_error_that_our_caller_gets_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """P27: a pair that is closed under load prints no traceback."""
    with caplog.at_level(logging.ERROR), without_traceback():
        fail()
    assert caplog.records == []


def test_calls_of_the_application_are_logged_as_before(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        with without_traceback():
            pass
        fail()
    (record,) = caplog.records
    assert "Handler shutting down" in record.getMessage()
