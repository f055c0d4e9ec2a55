"""Administration over HTTP: ATOM XML for the official client, and JSON.

    server            the HTTP connections of a set of listeners
    protocol          uvicorn's protocol behind the request gate, with deadlines
    request_gate      HTTP/1.1 without its ambiguous forms
    request_checks    checks of host, body, paging and token; the errors of requests
    atom/             the protocol of the official ServiceBusAdministrationClient
    json_api          health, entities, access rules, purge and reset in JSON
    fault_api         faults, subsystems, stops and the clock in JSON
    json_requests     what the JSON requests have in common

Rule 1: nothing is looked up before the client's token was verified.
Rule 2: a change is answered when it is on disk.
Rule 3: what a client sent is never repeated unescaped, and keys are only sent to clients with the
        Manage claim.
"""
