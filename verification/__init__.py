"""Long runs that prove what tests cannot: each is a package, ``python -m verification.NAME``."""
