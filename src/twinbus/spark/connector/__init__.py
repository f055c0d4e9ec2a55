"""``format("servicebus")``: reads queues and subscriptions in Spark, and writes queues and topics.

data_source       what Spark calls first; options checks what ``.option(...)`` sets
message_columns   messages as columns; column_types their AMQP types as text
stream_reader     streaming reads
  coordinator       on the driver: waits for messages, plans partitions, has batches settled
  lock_ledger       which messages are received and not settled
  lock_keeper       renews locks, and settles written batches
  partition_plan    what one task reads
  worker_reader     in a task: a partition_reader on its own loop, as Arrow batches
batch_reader      batch reads, which only peek
sink              writes; row_encoder encodes rows as messages
"""
