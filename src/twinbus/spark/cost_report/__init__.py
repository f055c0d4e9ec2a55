"""What was paid, from the operations logs, on Spark (rule C3).

    operations*.jsonl --> log_files --> block_jobs --> state      by day, as Parquet
                          blocks        |              |
                                        v              v
                    line_parser, aggregation       report_rows --> report
                    read,        once and summed

summaries     by day, with notes about the logs
update        a new day is added without computing the old ones again

Rule 1: whatever is kept can be made again from the logs: a report is what the logs say, with a
        state directory or without.
"""
