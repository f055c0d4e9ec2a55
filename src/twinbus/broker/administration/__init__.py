"""The administration protocol of the stock ServiceBusAdministrationClient: ATOM XML over HTTP.

    application.py    one namespace as an ASGI application
    requests.py       what a request must be before anybody looks at it; call.py and after that
    targets.py        which entity a path means
    access.py         whose token opens it; forward_rights.py and where it may let messages go on to
    entity_desk.py    the namespace, queues and topics; subscription_desk.py what is below them
    described.py      what all kinds of entities have in common
    descriptions.py   which XML element is which property of a description
    rules_xml.py      access rules as elements; filter_xml.py the rules of subscriptions
    facts.py          counts, sizes and times; forwarding.py where messages go on to
    values.py         durations, times, numbers as the protocol spells them; typed_values.py
    xml_reading.py    bounded, without DTDs; one sentence for everything that is wrong
    xml_writing.py    entries, feeds and errors as text
    request_gate.py   HTTP/1.1 without its ambiguous shapes; host_guard.py whose names are ours
    refusals.py       a status and its sentence

Rule 1: nothing is looked up before the caller's token was found good.
Rule 2: an answer is given when the change is on disk.
Rule 3: what a client sent is never repeated unescaped, and keys go to holders of Manage only.
"""
