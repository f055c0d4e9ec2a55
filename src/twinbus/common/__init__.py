"""What every layer shares: the clock, entity paths, connection strings, durations.

argument_types       the types of what a caller gave, checked where it was given
clock                the time, real or simulated
connection_string    connection strings, parsed and written
durations            durations as text
entity_path          entity paths and addresses, backlog queues among them
event_loop           event loops on threads of their own
fork                 what a forked child must not touch
sas_token            shared access signatures
steps                long work in steps
"""
