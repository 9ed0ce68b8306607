"""Real processes, real faults: kills, partitions, full and rotten disks under recorded load."""
