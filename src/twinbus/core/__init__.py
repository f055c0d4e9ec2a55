"""The pairing's decisions, without I/O: time and chance come in as arguments.

failover      health of one entity, as one table         rotation   which backlog queue
sending       one send through a pair, step by step      retry      how often, how long
classifier    which error means what                     deadline   how the time is split
envelope      what a backlog message looks like          parcel     a message on its way
destinations  where it may be brought
lifecycle     close and fault of the pair                events     what happened, as values
chunk         bringing a chunk of the backlog home
"""

from __future__ import annotations
