"""The syphon as a Structured Streaming query: the backlog comes home, one receipt a message."""
