"""How the clients of a broker share its time, its memory and its connections.

shares              how much of something an account and a connection may use
fair_queue          whose turn it is
loop_turns          the time of the event loop; read_turns the reader's thread
buffered_bytes      what is held in memory for slow connections
connection_slots    how many connections there may be
"""
