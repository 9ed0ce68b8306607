"""Commands that bring records in and out: produce, fetch, query, explain, delete-records."""
