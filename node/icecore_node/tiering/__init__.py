"""Sealed segments in object stores: their format there, how they are put, proved and read."""
