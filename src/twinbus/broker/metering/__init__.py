"""What was done, counted: the operations log for costs, the audit log for questions.

tally.py        counts in memory, a few additions for a run of messages
lines.py        an append-only file of JSON lines, rotated by day and size
operations.py   every ten seconds the counts become lines
audit.py        one line for each thing that happens to a message, if asked for
books.py        all of it for one namespace
"""
