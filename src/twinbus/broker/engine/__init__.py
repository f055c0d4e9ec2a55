"""What a queue does, without a clock, a disk or a socket.

queue                  one queue: sends, deliveries, settlements, and the answers to what it asked
message_transitions    what becomes of messages: removed, returned, deferred, moved, expired
write_batch            what is written next, as store operations
chunk                  a run of messages and its masks; stored_message their stored form
delivery_stream        what is delivered next, and to whom; consumers who receives
locks                  who holds what, until when; sessions who holds which session
duplicate_detection    the ids of a window
descriptions           what a queue, a topic or a subscription is told to be
outcomes               what a receiver can decide, and what dead-lettering adds
store_requests         what the engine asks to have read, and when it looks for due messages
topic                  topics and subscriptions; fan_out who gets what
forwarding             where messages may go on to
audit_hooks            who is told what happens
filters/               the rules of subscriptions: which messages match, and what they change
"""
