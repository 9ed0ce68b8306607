"""Full names of our methods, ``/icecore.v1.DataService/Fetch``, from the generated descriptors.

A name that no .proto has is a KeyError when the module that uses it is imported, not an
UNIMPLEMENTED in the field.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from google.protobuf.descriptor import FileDescriptor

from icecore.rpc.ports import Handlers, StreamHandler, UnaryHandler
from icecore.v1 import admin_pb2, coordinator_pb2, data_pb2, mirror_pb2, replication_pb2


class Service:
    """The methods of one service, by their short names.

    Args:
        file: The .proto that has it.
        name: As it is called there.
    """

    def __init__(self, file: FileDescriptor, name: str) -> None:
        service = file.services_by_name[name]
        self._paths = {each.name: f"/{service.full_name}/{each.name}" for each in service.methods}

    def __getitem__(self, method: str) -> str:
        """The full name. Raises KeyError when the service has no such method."""
        return self._paths[method]

    def __iter__(self) -> Iterator[str]:
        """The full names of all methods."""
        return iter(self._paths.values())

    def handlers(
        self,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler] | None = None,
    ) -> Handlers:
        """The handlers of the whole service, given by the short names of its methods.

        Raises KeyError when the service has no such method.
        """
        found = {self[name]: handler for name, handler in unary.items()}
        streamed = {self[name]: handler for name, handler in (streams or {}).items()}
        assert found.keys() | streamed.keys() == set(self._paths.values())
        return Handlers(found, streamed)


ADMIN: Final = Service(admin_pb2.DESCRIPTOR, "AdminService")
COORDINATOR: Final = Service(coordinator_pb2.DESCRIPTOR, "CoordinatorService")
MIRROR: Final = Service(mirror_pb2.DESCRIPTOR, "MirrorService")
NODE: Final = Service(coordinator_pb2.DESCRIPTOR, "NodeService")
DATA: Final = Service(data_pb2.DESCRIPTOR, "DataService")
REPLICATION: Final = Service(replication_pb2.DESCRIPTOR, "ReplicationService")
