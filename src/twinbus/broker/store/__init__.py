"""Durable storage of one namespace: the port and its two drivers, SQLite and memory."""
