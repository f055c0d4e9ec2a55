"""What every layer shares: the clock, entity paths, connection strings, durations.

argument_types       type checks of arguments
clock                the time, real or simulated
connection_string    connection strings, parsed and written
durations            durations as text: ISO 8601, and the short form of options
entity_path          entity paths and addresses, backlog queues among them
event_loop           event loops on threads of their own
fork                 safe use of connections and loops after a fork
lazy_exports         names of a package that are loaded on first use
sas_token            shared access signatures
steps                long computations in steps
"""
