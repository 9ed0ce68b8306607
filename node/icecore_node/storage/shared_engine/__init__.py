"""File model ``shared``: all logs of one I/O worker in one append file, with one sync for all.

It imports the other rooms of storage and ``icecore_node/ports.py``; ADR 0008 says why it is so.
"""
