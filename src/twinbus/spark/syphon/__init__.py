"""The syphon as a Structured Streaming query: the backlog comes home, one receipt a message.

backlog queues --long poll--> work orders --tasks--> receipts --> Parquet
  (secondary)     (driver)                 '--> destinations (primary)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.spark.syphon.query import Syphon, read_receipts, receipts_of, start_syphon
    from twinbus.spark.syphon.settings import SyphonSettings

__all__ = ["Syphon", "SyphonSettings", "read_receipts", "receipts_of", "start_syphon"]

APP_NAME: Final = "twinbus syphon"
MODULES: Final = ("twinbus.spark.syphon.task",)
"""What a session should have its tasks load ahead."""


def __getattr__(name: str) -> Any:
    """PySpark is loaded when something that needs it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "settings" if name == "SyphonSettings" else "query"
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
