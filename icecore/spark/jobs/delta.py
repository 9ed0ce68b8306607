"""A Delta log over the table of an export, so that others see whole steps and nothing else.

It names the files of steps that are done, and is derived from the ledger: a run first commits what
an earlier one did not come to. Each commit keeps the number of its step as an application
transaction, so it happens once. The library deltalake writes it in the driver; Spark needs no jar.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.jobs.files import JobFile, JobFolder
from icecore.spark.jobs.ledger import Step

STEP: Final = "step"
"""The column that the folders of steps make."""
_APP: Final = "icecore.spark.jobs.export"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def check(folder: JobFolder) -> None:
    """Refuse a place where no Delta log can be written.

    Raises:
        ConfigurationError: It can't; the message says what is missing.
    """
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError("--format delta needs deltalake in the driver") from error
    uri_of(folder.path)


def uri_of(path: str) -> str:
    """Translate a path of Spark's for deltalake. Raises ConfigurationError: It knows no such
    store."""
    scheme, _, rest = path.partition(":")
    if scheme == "file":
        return "/" + rest.lstrip("/")
    if scheme in ("s3a", "s3", "gs", "abfss", "abfs"):
        return f"{'s3' if scheme == 's3a' else scheme}:{rest}"
    raise ConfigurationError(
        f"--format delta can't write to {scheme}: there are local folders, s3a, gs and abfss"
    )


def bring_up(
    folder: JobFolder,
    table: str,
    fields: StructType,
    partition_by: Sequence[str],
    done: Sequence[Step],
) -> int:
    """Commit each step that is done and not in the log yet: how many those were.

    Args:
        folder: Of the job.
        table: The name of the table's folder in it.
        fields: Columns of its files and of its folders, but the step.
        partition_by: Columns that make folders.
        done: Notes of the steps that are done.

    Raises:
        StorageError: The log can't be read or written.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    whole = StructType([*fields.fields, StructField(STEP, IntegerType())])
    try:
        log = DeltaTable.create(
            uri_of(folder.under(table)),
            to_arrow_schema(whole, timezone="UTC"),
            mode="ignore",
            partition_by=[STEP, *partition_by],
        )
        known = log.transaction_version(_APP)
        first = 0 if known is None else known + 1
        for number in range(first, len(done)):
            files = files_of(folder, f"{table}/{STEP}={number:06}", done[number])
            _commit(log, files, [STEP, *partition_by], number)
            log.update_incremental()  # else the next commit takes this one for a rival's
    except (DeltaError, OSError) as error:
        raise StorageError(f"the Delta log of {folder.under(table)}: {error}") from error
    return len(done) - first


def files_of(folder: JobFolder, place: str, noted: Step) -> list[JobFile]:
    """The files of a step: those that its note names, or in notes of before, all that are there."""
    if "files" not in noted:
        return list(folder.files(place))
    return [JobFile(*each) for each in noted["files"][place]]


def _commit(log: Any, files: Sequence[JobFile], partition_by: list[str], number: int) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction

    added = [
        AddAction(
            f"{STEP}={number:06}/{each.path}",
            each.size_bytes,
            values_of(f"{STEP}={number}/{each.path}", partition_by),
            each.modified_ms,
            True,
            "{}",
        )
        for each in files
        if each.path.endswith(".parquet")
    ]
    log.create_write_transaction(
        added,
        mode="append",
        schema=log.schema(),
        partition_by=partition_by,
        commit_properties=CommitProperties(app_transactions=[Transaction(_APP, number)]),
    )


def values_of(path: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Values of the columns that the folders of a path stand for."""
    found: dict[str, str | None] = {}
    for part in path.split("/"):
        name, equals, value = part.partition("=")
        if equals and unquote(name) in partition_by:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found
