"""Finds damage in a store, and writes a new store with everything that can be read from it.

store_repair          the steps from the damaged file to the new one
page_file             SQLite's file format, read without SQLite
salvage               every row that can still be read
references            whether rows match each other; message_references those about messages
counter_check         whether the counters match the rows
body_selections       finds selections from shared bodies again whose rows are lost
catalogue_rows        entities as rows, for the package that interprets them
findings              the kinds of damage, as values; inspection what the checks share
new_store_file        a file that is filled with rows and becomes a store at the end
"""
