"""The syphon as a Structured Streaming query: it moves the backlog, with one receipt a message.

backlog queues --long poll--> work orders --tasks--> receipts --> Parquet
  (secondary)     (driver)                 '--> destinations (primary)

query             start_syphon(), and a handle on the running query
settings          SyphonSettings, also as options of the data source
data_source       the backlog as a data source; receipt_rows is its schema
coordinator       on the driver: waits for messages, plans work orders, writes the status
task              in a task: runs one work order
state_directory   control.json and status.json
hosted            the syphon inside an application; hosted_session is its Spark session
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
"""Modules that the tasks of a session should load in advance."""

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
