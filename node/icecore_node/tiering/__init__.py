"""Sealed segments in object stores: their format, and how they are written, proved and read."""
