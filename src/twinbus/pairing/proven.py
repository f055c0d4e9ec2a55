"""Which credentials have worked in this process (P7).

A failure to authenticate is a configuration error, unless the same credential worked before: then
the token service is what fails, and that is an outage. All factories of a process share what they
have learnt; it is kept by address and credential, and both stay in memory as long as a factory.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from twinbus.core.sending import CredentialHistory
from twinbus.drivers.credentials import Credential
from twinbus.drivers.port import NamespaceAddress

_known: WeakValueDictionary[tuple[NamespaceAddress, Credential], CredentialHistory] = (
    WeakValueDictionary()
)


def credential_history_for(
    address: NamespaceAddress, credential: Credential | None
) -> CredentialHistory:
    """What is known about a credential there; None is one that nobody else can have."""
    if credential is None:
        return CredentialHistory()
    fresh = CredentialHistory()
    try:
        return _known.setdefault((address, credential), fresh)
    except TypeError:  # A credential of somebody's own that has no hash.
        return fresh
