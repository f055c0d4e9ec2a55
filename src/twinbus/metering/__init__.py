"""What was done, counted and written down: by a broker for its namespaces, by a client for itself.

tally.py          counts in memory, a few additions for a run of messages
operations.py     every second the counts become lines
audit_lines.py    what happens to messages, numbered, between a beginning and an end
client_books.py   what a client does, written by a thread of its own
lines.py          an append-only file of JSON lines, rotated by day and size
pruning.py        deletes the files of days that nobody wants to keep
"""
