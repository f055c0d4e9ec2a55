"""Moves backlog messages to their destinations, for the local syphon and for Spark.

mover                 the mover of a process, and the local syphon
work_order_runner     one task of the syphon on Spark: a work order for some backlog queues
queue_group           all backlog queues of a mover; queue_mover one of them
chunk_transfer        one chunk: send, complete, defer, dead-letter
destination_senders   one sender for each destination
in_flight_limit       how many messages may be sent and not yet completed
backlog_search        which backlog queues hold messages; backlog_scan peeks through one
primary_probe         whether the primary is reachable
options               MoverOptions
planning/             what is to be done, decided without I/O
"""
