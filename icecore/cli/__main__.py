"""``python -m icecore.cli``: the same as ``icecore``."""

from icecore.cli import main

if __name__ == "__main__":
    main()
