"""Consuming: what is read from where, fetched ahead, handed out, and how far it has come."""
