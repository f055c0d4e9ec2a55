"""Administration over HTTP: ATOM XML for the stock client, and JSON.

    server            HTTP connections; protocol how uvicorn speaks on them
    request_gate      HTTP/1.1 without its ambiguous shapes
    request_checks    what a request must be, whose token opens it, and how it is refused
    atom/             the protocol of the stock ServiceBusAdministrationClient
    json_api          health, entities, access rules, purge and reset; fault_api faults and the
    clock json_requests     what requests in JSON have in common

Rule 1: nothing is looked up before the caller's token was found good.
Rule 2: an answer is given when the change is on disk.
Rule 3: what a client sent is never repeated unescaped, and keys go to holders of Manage only.
"""
