"""One client connection over AMQP, and the ends of its links.

connection                one AMQP connection; attach which link it gets
authorization             the $cbs node, and what the tokens of a connection grant
incoming_link, ingest     from the client: bytes to a stored message
outgoing_link             to the client; delivery_encoder a stored message as transfers
settlement                what receivers decide
management_node           the $management node: message_lookup, session_operations
session_attach            receivers that wait for a session
request_reply             request/reply links, and their status codes
"""
