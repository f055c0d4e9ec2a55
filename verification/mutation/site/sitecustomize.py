"""Python imports this at its start, in processes that were handed a bug (planting.py)."""

from verification.mutation.planting import plant_what_was_handed_on

plant_what_was_handed_on()
