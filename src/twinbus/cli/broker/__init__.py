"""``twinbus serve``, ``doctor``, ``fault`` and ``reset``."""
