"""What a queue does, without a clock, a disk or a socket.

queue                  one queue: sends, deliveries, settlements, and answers to its read requests
message_transitions    state changes of messages: removed, returned, deferred, moved, expired
write_batch            the changes for the next commit, as store operations
chunk                  a run of messages and its bit masks
stored_message         the stored form of a message, its ids and its partition
delivery_stream        what is delivered next, and to which receiver
consumers              receivers, their credit and their order
locks                  message locks
sessions               session locks, session states, and receivers that wait for a session
duplicate_detection    the message ids of the time window
descriptions           the properties of queues, topics and subscriptions
outcomes               how a receiver can settle a message, and what dead-lettering adds
store_requests         reads that the engine requests, and timers for expiry and schedule
topic                  topics and subscriptions
fan_out                which subscription gets which copy of a message
forwarding             forwarding of messages to other entities
audit_hooks            events of messages for the audit log
filters/               the rules of subscriptions: which messages match, and what they change
"""
