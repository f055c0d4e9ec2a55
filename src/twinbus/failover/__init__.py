"""The decisions of a pair, without I/O: time and chance come in as arguments.

state_machine       health of one entity, as one table
send_decision       one send through a pair, step by step
error_classifier    which error means what
backlog_rotation    which backlog queue is used
backlog_alerts      when the state of the backlog causes an event
backoff             how often something is tried again, and after which pause
pair_lifecycle      close and fault of the pair
missing_claims      which claims a syphon lacks
events              what happened, as values
"""

from __future__ import annotations
