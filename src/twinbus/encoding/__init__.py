"""How Service Bus messages are encoded, without I/O.

brokered_message    BrokeredMessage to bytes, and back
transit             messages that are sent or were received, as bytes
splicing            changes to an encoded message without encoding it again
batching            several messages as one
envelope/           the form of a message in a backlog queue, and its original form
ping                creates and recognises pings
pair_mark           which pair a backlog message belongs to
"""
