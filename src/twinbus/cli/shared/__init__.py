"""Shared by the commands: namespace options, values, messages, output, the JSON client."""
