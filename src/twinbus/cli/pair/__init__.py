"""``twinbus pair``, ``preflight`` and ``backlog``."""
