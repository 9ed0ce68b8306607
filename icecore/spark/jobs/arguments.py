"""The command line of jobs: what may be asked of each, checked before Spark is started."""

import argparse
from collections.abc import Sequence
from typing import Final, NoReturn

from icecore.client.types import MERGED_BYTES
from icecore.errors import ConfigurationError

STEP_RECORDS: Final = 5_000_000
INFER_RECORDS: Final = 10_000
_NUMBER_MAX: Final = 1_000_000_000_000


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; {self.prog} --help says what there is")


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Raises ConfigurationError."""
    parser = _Parser(
        prog="python -m icecore.spark.jobs",
        description="Jobs of a data pipeline on Spark. Each ends with one line of JSON on stdout, "
        "and with status 0, 1 (it failed) or 2 (reconcile found something). A run that was killed "
        "is started again with the same arguments.",
        allow_abbrev=False,
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="JOB", parser_class=_Parser)
    _latest(_add(jobs, "latest", "newest value of each key as a table"))
    _export(_add(jobs, "export", "JSON values as partitioned Parquet, with a quarantine"))
    _reconcile(_add(jobs, "reconcile", "compare metadata, cluster and object storage"))
    _backfill(_add(jobs, "backfill", "a table into a topic, each row once"))
    _rewrite(_add(jobs, "rewrite", "many small tiered segments into few large ones"))
    jobs.add_parser("schema", help="print the JSON Schema of the last line", allow_abbrev=False)
    packaging = jobs.add_parser(
        "package",
        help="write what spark-submit ships to a cluster that lacks this package",
        allow_abbrev=False,
    )
    packaging.add_argument("folder", help="where a zip and a script are written")
    return parser.parse_args(given)


def _add(
    jobs: "argparse._SubParsersAction[_Parser]", name: str, about: str
) -> argparse.ArgumentParser:
    parser = jobs.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.add_argument("topic", help="name of the topic")
    parser.add_argument(
        "--bootstrap", required=True, metavar="HOST:PORT", help="coordinators, with commas between"
    )
    parser.add_argument(
        "--master", help="Spark's; local[*] unless spark-submit or a configuration says so"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and write nothing"
    )
    return parser


def _loss(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="go on behind records that were deleted before the job read them",
    )


def _latest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where versions are written")
    _loss(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="FOLDER", help="for table and quarantine")
    parser.add_argument(
        "--schema", metavar="DDL", help="such as 'carrier string, month int'; inferred without it"
    )
    parser.add_argument(
        "--partition-by",
        type=_names,
        default=[],
        metavar="COLUMNS",
        help="columns that make folders",
    )
    parser.add_argument(
        "--format",
        choices=("parquet", "delta"),
        default="parquet",
        help="delta: Parquet files and a Delta log over them",
    )
    parser.add_argument(
        "--infer-records", type=_number, default=INFER_RECORDS, help=f"{INFER_RECORDS} by default"
    )
    parser.add_argument(
        "--step-records",
        type=_number,
        default=STEP_RECORDS,
        help=f"records of one step, which is what a restart does again; {STEP_RECORDS} by default",
    )
    _loss(parser)


def _reconcile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table",
        metavar="URL",
        help="the cluster's tier_url; without it contents in object storage are not compared",
    )
    parser.set_defaults(allow_data_loss=True)


def _backfill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", required=True, dest="source", metavar="PATH", help="the table")
    parser.add_argument("--format", default="parquet", help="of the table; parquet by default")
    parser.add_argument(
        "--state", required=True, metavar="FOLDER", help="where the job notes what is done"
    )
    parser.add_argument("--key", default="", metavar="COLUMN", help="of records; none by default")
    parser.add_argument(
        "--value", default="", metavar="COLUMN", help="all columns as JSON by default"
    )
    parser.add_argument("--timestamp", default="", metavar="COLUMN", help="event time")
    parser.add_argument("--tags", type=_names, default=[], metavar="COLUMNS", help="become tags")
    parser.add_argument(
        "--order-by", type=_names, default=[], metavar="COLUMNS", help="order of a key's records"
    )
    parser.add_argument(
        "--steps", type=_number, default=1, help="each reads the table; 1 by default"
    )
    parser.add_argument("--tasks", type=_number, default=8, help="of each step; 8 by default")


def _rewrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target-bytes",
        type=_number,
        default=MERGED_BYTES,
        help=f"of a merged segment's objects, at most; {MERGED_BYTES} by default",
    )
    parser.add_argument(
        "--tasks", type=_number, default=4, help="groups that are merged at once; 4 by default"
    )


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names such as a,b")
    return found


def _number(text: str) -> int:
    is_short = len(text) <= len(str(_NUMBER_MAX))
    if not is_short or not text.isdecimal() or not 1 <= int(text) <= _NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"{text[:50]!r} is no whole number above 0")
    return int(text)


def settings(given: Sequence[str]) -> dict[str, str]:
    """Parse settings of Spark. Raises ConfigurationError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"--conf is NAME=VALUE, not {text!r}")
        found[name] = value
    return found
