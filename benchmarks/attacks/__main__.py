"""One attack as a process of its own: ``python -m benchmarks.attacks NAME ADDRESS SECONDS``.

Says how much it has sent.
"""

import asyncio
import sys

from benchmarks.attacks import calls, frames

if __name__ == "__main__":
    _, name, address, seconds = sys.argv
    _, attack = {**frames.ATTACKS, **calls.ATTACKS}[name]
    print(asyncio.run(attack(address, float(seconds))))
