"""What a mover is to do, decided without I/O.

chunk_plan          what is done with a chunk of messages; chunk_ledger what has been done
circuit_breaker     which destinations are unavailable, and when one is tried again
deferred_messages   numbers of deferred messages, by destination
dispatcher          the next work orders of the syphon on Spark; work_order what one contains
receipts            what happened to each message
scan_pace           when idle queues are scanned
stall_detector      when messages wait and none moves
"""
