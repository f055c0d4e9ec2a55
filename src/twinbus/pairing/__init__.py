"""Paired namespaces: binds the decisions of ``failover`` to drivers.

pair                 the runtime of a pair; pair_setup how one is made, pair_completion later
routing              where a send goes; paired_sender, send_execution how it is carried out
batching_sender      sends of many callers to one backlog queue; direct_sender without the loop
pinger               failover timers and pings
backlog_queues       names and properties of backlog queues; provisioning finds or makes them
backlog_monitor      reads the backlog, and raises alerts
events               to subscribers, to the log, to the journal
operator_commands    what operators want of running applications
syphon_hosting       which syphon an application hosts
options              what can be chosen; option_variables the same in the environment
client/              factories and clients
preflight/           what to fix before an outage
"""

from __future__ import annotations
