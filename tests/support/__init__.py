"""Doubles that tests of several kinds use."""
