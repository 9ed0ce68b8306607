"""The election among coordinator processes: a pure decision, and the shell that performs it.

Leaders of partitions are chosen elsewhere: ``decisions/placement.py``. It imports the port of
elections, and what a server needs.
"""
