"""The protocol of the official ServiceBusAdministrationClient: ATOM XML over HTTP.

application       one namespace as an ASGI application
requests          one request, and the entity of its path
handlers          the handlers of entities, subscriptions and rules
forward_rights    whether a client may set a forward
entity_xml        entities as XML
rule_xml          the rules of subscriptions as XML
xml               a bounded reader, a writer, and the spelling of values
"""
