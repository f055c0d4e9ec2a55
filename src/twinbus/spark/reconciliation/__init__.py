"""Reconciliation: from audit logs, receipts and a look at the queues to one fate for each message.

    log_tables           logs and receipts as tables, and whether the logs are complete
    queue_scan           what the queues hold now
    message_locations    events --> stays of messages in places
    copies               places --> what arrived where, and what became of it
    accounts             copies, sends and receipts --> one account for each id, with its fates
    differences          accounts --> what does not add up, with all that the logs say about it
    reconcile            the chain, and the answer as values

Rule 1: every step takes tables and returns one; nothing is collected before the end.
Rule 2: a message is followed by its id, within its entity. What has no id is counted only.
"""
