"""The books of a broker: the operations log for costs, the audit log for questions.

audit.py        one line for each thing that happens to a message, if asked for
books.py        all of it for one namespace
"""
