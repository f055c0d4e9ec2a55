"""How the clients of a broker share its time, its memory and its connections.

shares              how much of a shared resource a key and a connection may use
fair_queue          which connection has the next turn
loop_turns          sharing the time of the event loop
read_turns          sharing the thread that reads the store
buffered_bytes      memory for slow connections
connection_slots    the number of connections
"""
