"""Settings of a coordinator process, checked once at its edge."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    TypeAdapter,
    create_model,
    field_validator,
    model_validator,
)

from icecore.errors import ConfigurationError
from icecore.process.log import LogFormat
from icecore.process.settings import (
    Settings,
    TableSettings,
    check_folder,
    check_listen,
    split_address,
)
from icecore.process.system import DESCRIPTORS_MIN
from icecore.topic_settings import SETTINGS, Setting, SettingKind
from icecore_coordinator.timing import CoordinatorTiming, Timing, WaitSettings

RECLAIM_SLACK_BYTES = 1 << 30
"""Deleting less than this may show nothing: files grow ahead of their records."""


def _size(value: object) -> object:
    """Sizes are written like others, and -1 is no limit."""
    is_size = isinstance(value, str) and value != "-1"
    return TypeAdapter(ByteSize).validate_python(value) if is_size else value


def _type_of(row: Setting) -> Any:
    """The type of a topic's default: what the row allows, or nothing."""
    if row.words:
        return Literal[row.words] | None
    low = -1 if row.is_limit else row.low
    bounds = Field(ge=low, le=row.high)
    if row.kind is SettingKind.BYTES:
        return Annotated[int, BeforeValidator(_size), bounds] | None
    return Annotated[int, bounds] | None


class _Defaults(TableSettings):
    """Settings of topics whose creation does not say them; what is left out here is the product's
    own default. They hold for topics that are created from then on."""

    @property
    def said(self) -> dict[str, Any]:
        """Those that are given."""
        return {key: value for key, value in self if value is not None}


if TYPE_CHECKING:
    TopicDefaults = _Defaults
else:
    TopicDefaults = create_model(
        "TopicDefaults",
        __base__=_Defaults,
        **{row.name: (_type_of(row), None) for row in SETTINGS.values() if row.is_for_all},
    )
"""One field for each row of ``icecore/topic_settings.py`` that a cluster may say for all topics."""


class EtcdSettings(TableSettings):
    """Metadata in etcd instead of in a file of ``data``."""

    endpoints: str = Field(
        default="", description="HOST:PORT of etcd's members, joined by commas; https:// means TLS."
    )
    prefix: str = Field(
        default="icecore/", min_length=1, description="Begin of all keys of the cluster."
    )
    user: str = Field(
        default="", description="User name; empty = none, or that of the certificate."
    )
    password_file: str = Field(default="", description="File with the user's password.")
    ca_file: str = Field(default="", description="Certificates that sign those of the members.")
    certificate_file: str = Field(default="", description="Certificate of this client.")
    key_file: str = Field(default="", description="Its private key.")
    attempt_ms: int = Field(
        default=2_000,
        ge=100,
        le=60_000,
        description="Wait for one member before another one is asked.",
    )
    timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        le=600_000,
        description="Wait for etcd before a change fails; a coordinator that starts ends then.",
    )
    session_ms: int = Field(
        default=5_000,
        ge=2_000,
        le=600_000,
        description="A coordinator that etcd does not hear for so long is replaced.",
    )

    @model_validator(mode="after")
    def _pairs(self) -> "EtcdSettings":
        for one, other in (("user", "password_file"), ("certificate_file", "key_file")):
            if bool(getattr(self, one)) != bool(getattr(self, other)):
                raise ValueError(f"etcd.{one} and etcd.{other} go together: give both or neither")
        if self.is_used and not self.members:
            raise ValueError("etcd.endpoints names no member: write HOST:PORT,HOST:PORT")
        schemes = {scheme for scheme, _ in self._parts()}
        if len(schemes) > 1:
            raise ValueError("etcd.endpoints has members with and without https://: all or none")
        for address in self.members:
            if any(each in address for each in "; /"):
                raise ValueError(f"etcd.endpoints: {address!r} is not an address: write HOST:PORT")
            try:
                split_address(address)
            except ConfigurationError as error:
                raise ValueError(f"etcd.endpoints: {error.message}") from error
        return self

    def _parts(self) -> list[tuple[bool, str]]:
        """Each member: whether it said TLS, and its address."""
        given = [each.strip().rstrip("/") for each in self.endpoints.split(",")]
        return [
            (each.startswith("https://"), each.removeprefix("https://").removeprefix("http://"))
            for each in given
            if each
        ]

    @property
    def is_used(self) -> bool:
        """Return whether metadata lie in etcd."""
        return bool(self.endpoints)

    @property
    def members(self) -> tuple[str, ...]:
        """``HOST:PORT`` of each, once."""
        return tuple(dict.fromkeys(address for _, address in self._parts()))

    @property
    def is_tls(self) -> bool:
        """Return whether members are called over TLS."""
        files = (self.ca_file, self.certificate_file)
        return any(files) or any(is_tls for is_tls, _ in self._parts())


class _Process(Settings):
    """Settings of a coordinator as a process."""

    data: Annotated[str, BeforeValidator(check_folder)] = Field(
        description="Folder of the metadata store."
    )
    listen: str = Field("127.0.0.1:7400", description="Address to serve on.")
    native_listen: str = Field(
        "", description="Address to serve on for native:// bootstraps; empty = gRPC only."
    )
    advertise: str = Field(
        "",
        description="HOST:PORT that standby coordinators name to clients and nodes; empty = where"
        " we listen.",
    )
    metrics_listen: str = Field(
        "", description="HOST:PORT for Prometheus and probes; empty = neither."
    )
    insecure_bind: bool = Field(False, description="Allow other machines to connect without TLS.")
    new_cluster: bool = Field(
        False,
        description="Begin a new cluster in an empty folder though nodes of another one call.",
    )
    descriptors_min: int = Field(
        DESCRIPTORS_MIN, ge=64, description="Least limit of open files (hard) to start with."
    )


class CoordinatorSettings(WaitSettings, _Process):
    """icecore coordinator: places segments, seals, recovers."""

    section: ClassVar[str] = "coordinator"
    flags: ClassVar[dict[str, str]] = {"metrics_listen": "--metrics"}

    reclaim_slack_bytes: ByteSize = Field(
        ByteSize(RECLAIM_SLACK_BYTES),
        ge=0,
        description="Deleting this much for a full disk, and a quarter of what its node has, must"
        " make room there; else no more is deleted.",
    )
    etcd: EtcdSettings = Field(
        EtcdSettings(),
        description="Metadata in etcd, not in data: a table [coordinator.etcd]; keys are "
        + ", ".join(EtcdSettings.model_fields)
        + ".",
    )
    timing: CoordinatorTiming = Field(
        CoordinatorTiming(), description="Other waits: a table [coordinator.timing]."
    )
    topic_defaults: TopicDefaults = Field(
        TopicDefaults(),
        description="Settings of topics whose creation does not say them: a table"
        " [coordinator.topic_defaults], or JSON in the environment and in flags; keys are "
        + ", ".join(TopicDefaults.model_fields)
        + ".",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe messages to log."
    )
    log_format: LogFormat = Field("text", description="Of the log: text, or json.")

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, given: object) -> object:
        """It was in capital letters once."""
        return given.lower() if isinstance(given, str) else given

    def check_addresses(self) -> None:
        """Raises ConfigurationError when an address is malformed or unsafe to listen on."""
        for address in filter(None, (self.listen, self.native_listen, self.metrics_listen)):
            check_listen(address, insecure_bind=self.insecure_bind)
        if self.advertise:
            split_address(self.advertise)

    @property
    def waits(self) -> Timing:
        """All that a coordinator waits, in one value."""
        common = {name: getattr(self, name) for name in WaitSettings.model_fields}
        return Timing(**common, **self.timing.model_dump())
