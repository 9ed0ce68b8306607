"""How `make test` runs: two lanes side by side, then all failures and times together."""
