"""Tests that read as stories: commands in words, and what is printed, as text files."""
