"""twinbus: keep sending while your broker is away.

Importing the package is light on purpose: no driver, no server and no optional dependency is
loaded before something asks for it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["__version__"]

__version__: Final = "0.1.0"
