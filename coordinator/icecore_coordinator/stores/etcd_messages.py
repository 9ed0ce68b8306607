"""The messages of etcd that the store speaks, made from a table of etcd's field numbers.

They live in a pool of their own. Libraries that register etcd's package in protobuf's common pool
refuse each other within one process, so ours must not be one of them. Fields that nobody uses are
left out: protobuf passes over what it does not know. An enum travels as its number.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "etcdserverpb"
_FILE: Final = "icecore_etcd"
_SCALARS: Final = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "ResponseHeader": {"cluster_id": (1, "uint64"), "revision": (3, "int64")},
    "KeyValue": {"key": (1, "bytes"), "version": (4, "int64"), "value": (5, "bytes")},
    "RangeRequest": {"key": (1, "bytes"), "range_end": (2, "bytes"), "limit": (3, "int64")},
    "RangeResponse": {
        "header": (1, "ResponseHeader"),
        "kvs": (2, "repeated KeyValue"),
        "more": (3, "bool"),
    },
    "PutRequest": {"key": (1, "bytes"), "value": (2, "bytes")},
    "DeleteRangeRequest": {"key": (1, "bytes"), "range_end": (2, "bytes")},
    "RequestOp": {
        "request_range": (1, "RangeRequest"),
        "request_put": (2, "PutRequest"),
        "request_delete_range": (3, "DeleteRangeRequest"),
    },
    "ResponseOp": {"response_range": (1, "RangeResponse")},
    "Compare": {
        "result": (1, "int32"),
        "target": (2, "int32"),
        "key": (3, "bytes"),
        "version": (4, "int64"),
        "value": (7, "bytes"),
    },
    "TxnRequest": {
        "compare": (1, "repeated Compare"),
        "success": (2, "repeated RequestOp"),
        "failure": (3, "repeated RequestOp"),
    },
    "TxnResponse": {
        "header": (1, "ResponseHeader"),
        "succeeded": (2, "bool"),
        "responses": (3, "repeated ResponseOp"),
    },
    "StatusRequest": {},
    "StatusResponse": {
        "header": (1, "ResponseHeader"),
        "version": (2, "string"),
        "errors": (8, "repeated string"),
    },
    "AuthenticateRequest": {"name": (1, "string"), "password": (2, "string")},
    "AuthenticateResponse": {"header": (1, "ResponseHeader"), "token": (2, "string")},
}
"""Number and type of each field, as etcd's package ``etcdserverpb`` has them."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            added = message.field.add(name=field, number=number)
            plain = kind.removeprefix("repeated ")
            is_list = plain != kind
            added.label = added.LABEL_REPEATED if is_list else added.LABEL_OPTIONAL
            if plain in _SCALARS:
                added.type = _SCALARS[plain]
            else:
                added.type = added.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{plain}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:
    found = _pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    return message_factory.GetMessageClass(found)


KeyValue = _class("KeyValue")
RangeRequest = _class("RangeRequest")
RangeResponse = _class("RangeResponse")
PutRequest = _class("PutRequest")
DeleteRangeRequest = _class("DeleteRangeRequest")
RequestOp = _class("RequestOp")
Condition = _class("Compare")
TxnRequest = _class("TxnRequest")
TxnResponse = _class("TxnResponse")
StatusRequest = _class("StatusRequest")
StatusResponse = _class("StatusResponse")
AuthenticateRequest = _class("AuthenticateRequest")
AuthenticateResponse = _class("AuthenticateResponse")

_EQUAL: Final = 0
_BY_VERSION: Final = 0
_BY_VALUE: Final = 3


def has_version(key: bytes, version: int) -> Any:
    """A condition: etcd counts so many puts of the key since it was made; 0 = it is absent."""
    return Condition(result=_EQUAL, target=_BY_VERSION, key=key, version=version)


def has_value(key: bytes, value: bytes) -> Any:
    """A condition: the key is there with this value."""
    return Condition(result=_EQUAL, target=_BY_VALUE, key=key, value=value)


def put(key: bytes, value: bytes) -> Any:
    """An operation of a transaction."""
    return RequestOp(request_put=PutRequest(key=key, value=value))


def delete(key: bytes) -> Any:
    """An operation of a transaction."""
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key))


def delete_all(prefix: bytes) -> Any:
    """An operation of a transaction: every key that starts so."""
    request = DeleteRangeRequest(key=prefix, range_end=end_of(prefix))
    return RequestOp(request_delete_range=request)


def read(key: bytes) -> Any:
    """An operation of a transaction."""
    return RequestOp(request_range=RangeRequest(key=key))


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that start so. The prefix is UTF-8, whose bytes are never 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
