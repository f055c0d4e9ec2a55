"""AMQP messages: their sections, found and checked, mostly without decoding them.

sections            where the sections of a message are; section_checks what they may hold
properties          the header and the properties
message             a message as a value
repeated_layout     messages of one sender that look alike
"""
