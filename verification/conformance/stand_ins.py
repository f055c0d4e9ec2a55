"""Stand-ins for the modules that the SDK's tests import and that only its repository has.

Only the names that the tests use, doing only what is needed here: there is no recording proxy
and no Azure subscription, so most of them let things pass.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import (
    ServiceBusSharedKeyCredential as ServiceBusSharedKeyCredentialAsync,
)

from verification.conformance import preparers
from verification.conformance.service import running_broker


class AccessRights(enum.Enum):
    """The claims of an access rule, as azure-mgmt-servicebus names them."""

    manage = "Manage"
    send = "Send"
    listen = "Listen"


class RecordedTestCase:
    """The base class of the tests; nothing is recorded."""

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        """pytest-asyncio awaits it."""
        return test


def get_credential(*, is_async: bool = False, **_options: Any) -> Any:
    """A credential that may do everything. In Azure it is an identity, here it is a key."""
    kind = ServiceBusSharedKeyCredentialAsync if is_async else ServiceBusSharedKeyCredential
    return kind(*running_broker().root_rule)


def not_recorded(test: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of recorded_by_proxy: the test as it is."""
    return test


def nothing(*_arguments: Any, **_options: Any) -> None:
    """In the place of everything that sets the recording proxy up."""


def install() -> None:
    """Make the stand-ins importable under the names that the tests use."""
    _module(
        "devtools_testutils",
        AzureMgmtRecordedTestCase=RecordedTestCase,
        AzureRecordedTestCase=RecordedTestCase,
        CachedResourceGroupPreparer=preparers.CachedServiceBusResourceGroupPreparer,
        RandomNameResourceGroupPreparer=preparers.CachedServiceBusResourceGroupPreparer,
        PowerShellPreparer=preparers.environment_preparer,
        get_credential=get_credential,
        recorded_by_proxy=not_recorded,
        set_custom_default_matcher=nothing,
        add_general_regex_sanitizer=nothing,
    )
    _module("devtools_testutils.aio", recorded_by_proxy_async=not_recorded)
    _module(
        "devtools_testutils.sanitizers",
        add_remove_header_sanitizer=nothing,
        add_general_regex_sanitizer=nothing,
        add_oauth_response_sanitizer=nothing,
    )
    _module("azure.common", AzureHttpError=Exception, AzureConflictHttpError=Exception)
    _module("azure.mgmt")
    _module("azure.mgmt.servicebus")
    _module("azure.mgmt.servicebus.models", AccessRights=AccessRights)
    # The tests have a module of this name, which creates entities in an Azure subscription.
    sys.modules["servicebus_preparer"] = preparers


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
