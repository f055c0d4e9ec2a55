"""AMQP messages: finding and checking their sections, mostly without decoding them.

sections            where the sections of a message are
section_checks      the valid content of each section
properties          the header and the properties
message             a message as a value
repeated_layout     a fast path for similar messages of one sender
"""
