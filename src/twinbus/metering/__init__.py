"""What was done, counted and written down: by a broker for its namespaces, by a client for itself.

operations_log    counts in memory, which become lines every second
audit_log         what happens to messages, numbered, between a beginning and an end
client_meter      what a client does, written by a thread of its own
json_lines        an append-only file of JSON lines, rotated by day and size
log_retention     deletes the files of days that nobody wants to keep
"""
