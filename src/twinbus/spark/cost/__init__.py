"""What was paid, from the operations logs, on Spark (rule C3).

    operations*.jsonl --> blocks.py --> counting.py --> state.py   by day, as Parquet
                          cut           |               |
                                        v               v
               parsing.py, lines.py, steps.py        slicing.py, pricing.py --> report.py
               read,       judge,    once and summed

log_files.py   which files there are, and which have changed
update.py      a new day is added without computing the old ones again

Rule 1: whatever is kept can be made again from the logs: a report is what the logs say, with a
        state directory or without.
"""
