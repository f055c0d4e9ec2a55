"""One client connection over AMQP, and the handlers of its links.

connection            one AMQP connection
attach                checks an attach and chooses the handler of the link
authorization         the $cbs node, and what the tokens of a connection grant
incoming_link         links on which clients send
ingest                the bytes of a transfer to stored messages, with all checks
outgoing_link         links on which clients receive
delivery_encoder      stored messages to transfers
settlement            dispositions of receivers
management_node       the $management node
message_lookup        messages by sequence number: peek, deferred, scheduled
session_attach        receivers that wait for a session
session_operations    locks, states and lists of sessions
request_reply         request/reply links, and their status codes
"""
