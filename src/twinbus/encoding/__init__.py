"""How Service Bus messages are encoded, without I/O.

brokered_message    BrokeredMessage to bytes, and back
transit             a message on its way, as bytes
splicing            changes to an encoded message without encoding it again
batching            several messages as one
envelope/           a message in a backlog queue: how it gets there, and back
ping                pings, made and recognised
pair_mark           which pair a backlog message belongs to
"""
