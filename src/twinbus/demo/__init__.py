"""``make demo``: an outage from beginning to end, with real processes, and the books at its end.

two brokers start (twinbus serve), an application pairs them and sends at a steady rate
the primary is killed with -9: sends go to the secondary, and none fails
the primary returns on the same data; pings find it
the syphon on Spark (twinbus syphon) brings everything home; receivers count
the books are closed: sent, delivered, lost, and what the outage cost

plan.py        what is sent where, how fast, and for how long
books.py       pure: who sent what, what arrived, what is missing
application.py sends through the pair and receives from the primary
syphon.py      the syphon, as a process of its own
site.py        everything that runs, and where its files are
story.py       the acts, one after the other
screen.py      what is told: plain lines; another screen can be put in its place
result.py      what came of it, for people and as JSON
"""
