"""The election among coordinator processes: a pure decision, and the shell that performs it.

It imports the port of elections, and what a server needs.
"""
