"""Commands on topics: `icecore topic`, its options of settings, and how it shows topics."""
