"""What is wrong with a store, and a new store with everything that can be read from it.

store_repair          the chain from the damaged file to the new one
page_file             SQLite's file format, read without SQLite
salvage               every row that can still be read
references            whether rows fit together; message_references those about messages
counter_check         whether the counters fit; body_selections shares of bodies that are lost
catalogue_rows        entities as rows, for whoever knows what they mean
findings              what can be wrong, as values; inspection what the checks share
new_store_file        a file that is filled with rows and becomes a store at the end
"""
