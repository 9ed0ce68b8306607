"""``python -m benchmarks.soak``: see ``soak.py``."""

from benchmarks.harness.lifetime import exit_with
from benchmarks.soak.soak import main

if __name__ == "__main__":
    exit_with(main)
