"""Moves backlog messages to their destinations, for the local syphon and for Spark.

mover               the mover of a process, and the local syphon
work_order_runner   one task's part of it
queue_group         all queues of a mover; queue_mover one of them
chunk_transfer      one chunk: send, settle, defer, dead-letter
backlog_search      which backlog queues hold messages; backlog_scan looks through one
primary_probe       whether the primary can be reached
planning/           what is to be done, decided without I/O
"""
