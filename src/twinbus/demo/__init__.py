"""``make demo``: a complete outage with real processes, and its result.

two brokers start (twinbus serve), an application pairs them and sends at a constant rate
the primary is killed with kill -9: sends are diverted to the secondary, and none fails
the primary starts again on the same data; pings restore its entities
the syphon on Spark (twinbus syphon) moves the backlog to the primary; receivers count
at the end: sent, delivered, lost, and the cost of the outage

scenario        destinations, rate and durations; the check of all deliveries; the result
application     sends through the pair and receives from the primary
processes       the brokers and the syphon, each in its own process
outage          the steps, one after the other
terminal        the output: a live screen, or plain lines
final_report    cost and reconciliation at the end
output_files    the files of one run
"""
