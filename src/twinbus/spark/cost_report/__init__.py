"""The cost report: costs from operations logs, computed on Spark (rule C3).

    operations*.jsonl --> log_files --> block_jobs --> state      by day, as Parquet
                          blocks        |              |
                                        v              v
                    line_parser, aggregation       report_rows --> report
                    valid lines, without copies, summed

summaries     by day, with notes about the logs
update        adds a new day without computing the old ones again

Rule 1: everything in the state directory can be computed again from the logs: a report is the same
        with a state directory or without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from twinbus.spark.cost_report.report import ComputedReport, ReportRequest, cost_report

__all__ = ["ComputedReport", "ReportRequest", "cost_report"]

__getattr__, __dir__ = lazy_exports(
    __name__, dict.fromkeys(__all__, "twinbus.spark.cost_report.report"), __all__
)
