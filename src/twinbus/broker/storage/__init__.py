"""Durable storage of one namespace: the interface and its two drivers, SQLite and memory.

interface            what a store can do; operation_checks which operations are refused
sqlite_store         the store on SQLite: sqlite_reader, sqlite_writer, sqlite_operations
memory_store         the store in memory
schema               the tables; row_checksum their checksums; shared_bodies bodies in common
store_files          the files of a store; data_directory those of a whole broker
integrity_check      the check of a whole store
repair/              what is wrong with a store, and a new one with all that can be read
"""
