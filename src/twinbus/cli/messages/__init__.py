"""``twinbus send``, ``receive``, ``peek`` and ``dlq``."""
