"""``make demo``: an outage from beginning to end, with real processes, and the result at its end.

two brokers start (twinbus serve), an application pairs them and sends at a steady rate
the primary is killed with -9: sends go to the secondary, and none fails
the primary returns on the same data; pings find it
the syphon on Spark (twinbus syphon) brings everything home; receivers count
at the end: sent, delivered, lost, and what the outage cost

scenario        what is sent where, how fast, and for how long; what arrived, what is missing
application     sends through the pair and receives from the primary
processes       the brokers and the syphon, as processes of their own
outage          the steps, one after the other
terminal        what is shown: a live screen, or plain lines
final_report    cost and reconciliation at the end; output_files where everything is written
"""
