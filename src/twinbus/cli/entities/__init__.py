"""``twinbus queue``, ``topic``, ``subscription``, ``rule`` and ``key``."""
