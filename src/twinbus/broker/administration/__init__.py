"""The administration protocol of the stock ServiceBusAdministrationClient: ATOM XML over HTTP.

    application.py    one namespace as an ASGI application
    requests.py       what a request must be before anybody looks at it; its body
    targets.py        which entity a path means
    access.py         whose token opens it
    queue_desk.py     create, read, change, delete and list queues
    descriptions.py   which XML element is which property of a description
    rules_xml.py      access rules as elements
    values.py         durations, times, numbers as the protocol spells them
    xml_reading.py    bounded, without DTDs; one sentence for everything that is wrong
    xml_writing.py    entries, feeds and errors as text
    strict_http.py    HTTP/1.1 without its ambiguous shapes
    refusals.py       a status and its sentence

Rule 1: nothing is looked up before the caller's token was found good.
Rule 2: an answer is given when the change is on disk.
Rule 3: what a client sent is never repeated unescaped, and keys go to holders of Manage only.
"""
