"""What a queue does, without a clock, a disk or a socket.

queue.py        one queue: sending, handing out, settling, and the answers to what it asked
fates.py        what becomes of messages: removed, given back, deferred, moved, expired
batch.py        what is to be written next; writing.py turns it into store operations and back
shelf.py        which chunks are in memory; grace.py when one may be forgotten
chunk.py        a run of messages and its masks; record.py its stored form
returned.py     messages that came back; consumer.py who receives, and whose turn it is
locks.py        who holds what, until when; lock_loss.py all of them at once
lane.py         what is handed out next; handing_out.py to whom; sessions.py who holds which session
history.py      the ids of a window: duplicates; partitions.py which partition a message belongs to
forwarding.py   where messages may go on to; facts.py the ids that some queues must know
changes.py      which properties are for life; witness.py who is told what happens
calendar.py     when to look for expired and scheduled messages
requests.py     what the machine asks to have read
description.py  what a queue is told to be; outcome.py what a receiver can decide
dead_letter.py  what is added to a message on its way to the dead-letter queue
topic.py        topics and subscriptions; fan_out.py who gets what, sheets.py the copies they share
filters/        the rules of subscriptions: which messages they let in, and what they change
"""
