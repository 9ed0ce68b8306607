"""The real cores and shells under a seeded world that loses messages, writes and time."""
