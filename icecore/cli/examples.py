"""Examples of each command, as its ``--help`` ends with them. A test parses every one."""

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "topic create": (
        "icecore topic create flights --partitions 6",
        "icecore topic create flights -p 6 --segment-bytes 64MiB --retention-bytes 10GiB",
    ),
    "topic list": ("icecore topic list", "icecore topic list --deleted --json"),
    "topic describe": ("icecore topic describe flights",),
    "topic alter": ("icecore topic alter flights --retention-ms 604800000",),
    "topic add-partitions": ("icecore topic add-partitions flights 12",),
    "topic roll": ("icecore topic roll flights",),
    "topic delete": (
        "icecore topic delete flights --yes",
        "icecore topic delete flights --now --yes",
    ),
    "topic undelete": ("icecore topic undelete flights --as flights-2013",),
    "topic delete-records": (
        "icecore topic delete-records flights --before-time 2026-01-01 --dry-run",
    ),
    "cluster describe": ("icecore cluster describe",),
    "cluster health": (
        "icecore cluster health",
        "icecore cluster health --watch",
        "icecore cluster health --wait 60 && ./start-jobs",
    ),
    "cluster backup": (
        "icecore cluster backup /backup/icecore-metadata",
        "icecore cluster backup move --data /var/lib/icecore",
    ),
    "cluster restore": (
        "icecore cluster restore /backup/icecore-metadata --data /var/lib/icecore",
    ),
    "cluster accept-disk": ("icecore cluster accept-disk --node-id 2",),
    "node list": ("icecore node list", "icecore node list --json"),
    "cluster balance": ("icecore cluster balance --dry-run", "icecore cluster balance"),
    "node drain": ("icecore node drain 3", "icecore node drain 3 --wait 3600"),
    "node undrain": ("icecore node undrain 3",),
    "node remove": (
        "icecore node remove 2",
        "icecore node remove 2 --disk-gone --yes",
    ),
    "cluster adopt": (
        "icecore cluster adopt --dry-run",
        "icecore cluster adopt --bucket s3://bucket/prefix",
    ),
    "segment list": ("icecore segment list flights --partition 0",),
    "segment verify": ("icecore segment verify .icecore/node-1",),
    "segment declare-lost": ("icecore segment declare-lost flights 0 7",),
    "segment recover-unclean": ("icecore segment recover-unclean flights 0 7",),
    "segment delete": ("icecore segment delete flights 0 7 --dry-run",),
    "position list": ("icecore position list", "icecore position list --name billing --json"),
    "position lag": ("icecore position lag billing",),
    "position reset": (
        "icecore position reset billing flights --to earliest --dry-run",
        "icecore position reset billing flights --to 2026-11-21T10:00 --yes",
    ),
    "position delete": ("icecore position delete billing --topic flights --yes",),
    "producer list": ("icecore producer list", "icecore producer list --json"),
    "producer delete": ("icecore producer delete importer-2019 --yes",),
    "tier status": ("icecore tier status", "icecore tier status --topic flights"),
    "tier verify": (
        "icecore tier verify s3://bucket/prefix --region eu-central-1",
        "icecore tier verify file:///var/lib/icecore/tier --offline --topic flights",
    ),
    "tier restore": (
        "icecore tier restore s3://bucket/prefix --dry-run",
        "icecore tier restore s3://bucket/prefix --topic flights --take-over",
    ),
    "tier merge": (
        "icecore tier merge flights --dry-run",
        "icecore tier merge flights --target-bytes 268435456",
    ),
    "tier forget-store": (
        "icecore tier forget-store 7f3c9a52d1e84b06a9c2f5e1387b4d90",
        "icecore tier forget-store 7f3c9a52d1e84b06a9c2f5e1387b4d90 --yes",
    ),
    "tier export-manifest": ("icecore tier export-manifest s3://bucket/prefix --topic flights",),
    "config show": (
        "icecore config show node --config icecore.toml",
        "icecore config show --node 2",
    ),
    "config schema": ("icecore config schema coordinator",),
    "explain query": ("icecore explain query flights --tag EWR --analyze",),
    "explain fetch": ("icecore explain fetch flights --key N14228",),
    "produce": (
        "icecore produce flights -f ndjson --key-field tailnum flights.ndjson",
        "icecore produce flights -f ndjson --from-line 1001 flights.ndjson",
        "icecore fetch flights --format records | icecore produce copy -f records",
        "printf 'k=v\\n' | icecore produce flights -k = --offsets",
    ),
    "fetch": (
        "icecore fetch flights --from earliest -n 3",
        "icecore fetch flights -o -5",
        "icecore fetch flights --from 2026-11-21T10:00 --until 2026-11-21T11:00",
        "icecore fetch flights --format '%p %o %k %v\\n'",
        "icecore fetch flights --tag UA --follow",
    ),
    "query": (
        "icecore query flights --key N14228 --newest-first -n 1",
        "icecore query flights --tag EWR --from-event-time 2013-03-01 --all",
    ),
    "dev": ("icecore dev", "icecore dev --nodes 5 --sample"),
    "dev restart": ("icecore dev restart node-2", "icecore dev restart coordinator"),
    "dev sample": ("icecore dev sample --count 1000 > flights.ndjson",),
}
"""Examples by the full name of a command."""
