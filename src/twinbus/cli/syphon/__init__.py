"""``twinbus syphon``."""
