"""Logs as batches one behind the other: walked, read, proved; for every engine that keeps them so.

An engine brings something to read from and where each log begins and ends. It imports
``storage/engine.py`` and ``icecore_node/ports.py``.
"""
