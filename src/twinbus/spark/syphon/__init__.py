"""The syphon as a Structured Streaming query: the backlog comes home, one receipt a message.

backlog queues --long poll--> work orders --tasks--> receipts --> Parquet
  (secondary)     (driver)                 '--> destinations (primary)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from twinbus.spark.syphon.query import Syphon, read_receipts, receipts_of, start_syphon
    from twinbus.spark.syphon.settings import SyphonSettings

__all__ = ["Syphon", "SyphonSettings", "read_receipts", "receipts_of", "start_syphon"]

APP_NAME: Final = "twinbus syphon"
MODULES: Final = ("twinbus.spark.syphon.task",)
"""What a session should have its tasks load ahead."""

_QUERY: Final = ("Syphon", "read_receipts", "receipts_of", "start_syphon")

# PySpark is loaded when something that needs it is asked for.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "SyphonSettings": "twinbus.spark.syphon.settings",
        **dict.fromkeys(_QUERY, "twinbus.spark.syphon.query"),
    },
    __all__,
)
