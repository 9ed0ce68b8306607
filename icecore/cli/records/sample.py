"""Sample data: departures of invented aeroplanes, the same ones each time, to try commands with."""

import json
import random
from collections.abc import Iterator

from icecore.cli.records.times import iso_time, parse_time_ms

TOPIC = "flights"
PARTITIONS = 6
COUNT = 10_000
_SEED = 2013
_START_MS = 1_356_998_400_000  # 2013-01-01
_STEP_MS = 2_700_000
_CARRIERS = ("UA", "B6", "AA", "DL", "EV", "MQ", "US", "WN")
_ORIGINS = ("EWR", "JFK", "LGA")
_DESTINATIONS = ("IAH", "MIA", "BQN", "ATL", "ORD", "FLL", "IAD", "LAX", "SFO", "BOS")
_TAILS = 400


def rows(count: int = COUNT) -> Iterator[dict[str, str | int]]:
    """Departures in the order of their time; ``tailnum`` is the key, ``carrier`` a tag."""
    chance = random.Random(_SEED)
    for number in range(count):
        tail = chance.randrange(_TAILS)
        yield {
            "time": iso_time(_START_MS + number * _STEP_MS),
            "carrier": _CARRIERS[tail % len(_CARRIERS)],
            "flight": chance.randrange(1, 6000),
            "tailnum": f"N{14_228 + 37 * tail}",
            "origin": chance.choice(_ORIGINS),
            "dest": chance.choice(_DESTINATIONS),
            "dep_delay": int(chance.gammavariate(0.6, 30)) - 8,
        }


def lines(count: int = COUNT) -> Iterator[str]:
    """The same as NDJSON."""
    for row in rows(count):
        yield json.dumps(row)


async def fill(bootstrap: str) -> int:
    """Make the topic and append the sample, unless there is such a topic; how many records."""
    from icecore.client.admin.admin import Admin
    from icecore.client.produce.producer import Producer
    from icecore.errors import TopicExistsError
    from icecore.topic_settings import TopicSettings

    async with Admin(bootstrap) as admin:
        try:
            await admin.create_topic(TOPIC, TopicSettings(partitions=PARTITIONS))
        except TopicExistsError:
            return 0
    count = 0
    async with Producer(bootstrap) as producer:
        for row in rows():
            value = json.dumps(row).encode()
            key, tag = str(row["tailnum"]).encode(), str(row["carrier"])
            when = parse_time_ms(str(row["time"]))
            await producer.send_wait(TOPIC, value, key=key, tags=(tag,), timestamp_ms=when)
            count += 1
    return count
