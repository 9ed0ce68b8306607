"""Programs that show icecore at work."""
