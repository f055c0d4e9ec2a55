"""Counts operations and writes logs: a broker for its namespaces, a client for itself.

operations_log    counters in memory, which are written as lines every second
audit_log         what happens to messages, as numbered lines
client_meter      the operations of a client, written by a thread of its own
json_lines        an append-only file of JSON lines, rotated by day and size
log_retention     deletes files that are older than keep_days
"""
