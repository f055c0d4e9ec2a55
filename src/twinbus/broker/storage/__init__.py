"""Durable storage of one namespace: the interface and its two drivers, SQLite and memory.

interface            what a store can do; operation_checks which operations are refused
sqlite_store         the store on SQLite; with sqlite_connection, sqlite_operations, sqlite_reader,
                     sqlite_writer
memory_store         the store in memory
schema               the tables; row_checksum their checksums; shared_bodies messages stored once
                     for several chunks
store_files          the files of a store; data_directory the directory of a whole broker
integrity_check      the check of a whole store when it is opened
repair/              finds damage in a store, and writes a new one with all that can be read
"""
