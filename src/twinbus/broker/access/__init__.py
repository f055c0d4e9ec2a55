"""Who may do what: shared access rules, the tokens signed with them, and what those grant.

    rules   the rules of a namespace or an entity, and their keys
    sas     tokens: parse, verify against the rules, make; what one connection has been granted

Rule 1: pure. The time comes in as ``now_s``, random bytes come in as a function.
Rule 2: no rule means no entry. Nothing is open because nobody configured it.
Rule 3: keys, signatures and tokens appear in no repr and no error.
"""
