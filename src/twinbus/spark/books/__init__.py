"""Reconciliation: from audit logs, receipts and a look at the queues to one fate for each message.

    sources.py     logs and receipts as tables          looking.py   what the queues hold now
    runs.py        are the logs whole
    places.py      events --> stays of messages in places
    copies.py      places --> what arrived where, and what became of it
    accounts.py    copies, sends and receipts --> one account for each id, with its fates
    differences.py accounts --> what does not add up, with all that the logs say about it
    reconcile.py   the chain, and the answer as values

Rule 1: every step takes tables and returns one; nothing is collected before the end.
Rule 2: a message is followed by its id, within its entity. What has no id is counted only.
"""
