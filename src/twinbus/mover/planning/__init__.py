"""What a mover is to do, decided without I/O.

chunk_plan          what is done with a chunk of messages; chunk_ledger what has been done
circuit_breaker     which destinations are left alone for a while
deferred_messages   messages that were set aside, by destination
dispatcher          which work orders come next; work_order what one says
receipts            what became of each message
scan_pace           when idle queues are looked through
stall_detector      when nothing moves any more
"""
