"""Paired namespaces: binds the decisions of ``failover`` to drivers.

pair                 the runtime of a pair; pair_setup creates one, pair_completion completes it
routing              decides where a send goes; paired_sender and send_execution carry it out
batching_sender      batches the sends of many callers to one backlog queue
direct_sender        sends on the caller's thread, without the event loop
pinger               failover timers and pings
backlog_queues       names and properties of backlog queues; provisioning finds or creates them
backlog_monitor      reads the backlog and raises alerts
events               events for subscribers, the log and the journal
operator_commands    the control file: commands of operators to running applications
syphon_hosting       the syphon that an application hosts
options              the options of a pair; option_variables reads them from the environment
client/              factories and clients
preflight/           checks of both namespaces before an outage
"""

from __future__ import annotations
