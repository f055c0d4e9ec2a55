"""The protocol of the stock ServiceBusAdministrationClient: ATOM XML over HTTP.

application       one namespace as an ASGI application
requests          one request, and which entity its path means
handlers          entities, subscriptions and rules
forward_rights    where a caller may let messages go on to
entity_xml        entities as XML; rule_xml the rules of subscriptions
xml               a bounded reader, a writer, and how values are spelled
"""
