"""Functions that plant a bug each, by layer. A module here imports only what it changes, because
every process that gets one of its bugs imports it."""
