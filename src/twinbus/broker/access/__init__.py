"""Access control: access rules, the tokens signed with their keys, and what tokens grant.

    rules   the rules of a namespace or an entity, and their keys
    sas     tokens: parse, verify against the rules, create; what one connection has been granted

Rule 1: pure. The time comes in as ``now_s``, random bytes come in as a function.
Rule 2: no rule means no access. Nothing is allowed by missing configuration.
Rule 3: keys, signatures and tokens appear in no repr and no error.
"""
