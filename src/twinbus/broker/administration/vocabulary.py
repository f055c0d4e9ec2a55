"""The XML namespaces of the administration protocol."""

from __future__ import annotations

from typing import Final

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNT_DETAILS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

# Names of types are written with this prefix, which the stock client cuts off at the colon.
SCHEMA_PREFIX: Final = "d6p1"
