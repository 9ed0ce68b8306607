"""A Delta log over the table of an export (``icecore.spark.runs.commits``).

Each commit keeps the number of its step as an application transaction, so it happens once. The
library deltalake writes it in the driver; Spark needs no jar.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.runs.commits import step_name
from icecore.spark.runs.folder import JobFile, JobFolder

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


class DeltaLog:
    """``CommitLog`` of Delta. The first commit makes it.

    Args:
        folder: Of the job.
        table: The name of the table's folder in it.
        fields: Columns of its files and of its folders, but the step.
        partition_by: Columns that make folders.

    Raises:
        StorageError: It can't be read or written.
    """

    def __init__(
        self, folder: JobFolder, table: str, fields: StructType, partition_by: Sequence[str]
    ) -> None:
        from deltalake import DeltaTable

        self._table = folder.under(table)
        self._partition_by = [STEP, *partition_by]
        whole = StructType([*fields.fields, StructField(STEP, IntegerType())])
        with self._explained():
            self._log = DeltaTable.create(
                uri_of(self._table),
                to_arrow_schema(whole, timezone="UTC"),
                mode="ignore",
                partition_by=self._partition_by,
            )

    def last(self) -> int | None:
        """See ``CommitLog``."""
        with self._explained():
            return self._log.transaction_version(_APP)

    def commit(self, number: int, files: Sequence[JobFile]) -> None:
        """See ``CommitLog``."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction

        added: list[Any] = [
            AddAction(
                f"{step_name(number)}/{each.path}",
                each.size_bytes,
                values_of(f"{STEP}={number}/{each.path}", self._partition_by),
                each.modified_ms,
                True,
                "{}",
            )
            for each in files
            if each.path.endswith(".parquet")
        ]
        with self._explained():
            self._log.create_write_transaction(
                added,
                mode="append",
                schema=self._log.schema(),
                partition_by=self._partition_by,
                commit_properties=CommitProperties(app_transactions=[Transaction(_APP, number)]),
            )
            self._log.update_incremental()  # else the next commit takes this one for a rival's

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta log of {self._table}: {error}") from error


def values_of(path: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Values of the columns that the folders of a path stand for."""
    found: dict[str, str | None] = {}
    for part in path.split("/"):
        name, equals, value = part.partition("=")
        if equals and unquote(name) in partition_by:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found
