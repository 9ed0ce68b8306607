"""Run `make test`: two lanes side by side, then all failures and times together."""
