"""A client's environment stays light."""

from benchmarks import install

LIMIT_BYTES = 120_000_000


def test_a_client_environment_is_light() -> None:
    sizes = install.sizes_bytes()
    assert sum(sizes.values()) <= LIMIT_BYTES, sizes
    assert min(sizes["numpy"], sizes["grpcio"], sizes["icecore"]) > 1_000_000  # they are counted


def test_it_holds_nothing_of_the_commands_and_the_servers() -> None:
    found = set(install.client_packages())
    assert {"numpy", "grpcio", "protobuf", "lz4", "xxhash", "google-crc32c"} <= found
    assert not found & {"typer", "rich", "pydantic", "uvloop", "pyarrow", "zstandard", "rocksdict"}
