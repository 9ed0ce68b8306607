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
    "KeyValue": {
        "key": (1, "bytes"),
        "create_revision": (2, "int64"),
        "mod_revision": (3, "int64"),
        "version": (4, "int64"),
        "value": (5, "bytes"),
    },
    "RangeRequest": {
        "key": (1, "bytes"),
        "range_end": (2, "bytes"),
        "limit": (3, "int64"),
        "revision": (4, "int64"),
        "count_only": (9, "bool"),
    },
    "RangeResponse": {
        "header": (1, "ResponseHeader"),
        "kvs": (2, "repeated KeyValue"),
        "more": (3, "bool"),
        "count": (4, "int64"),
    },
    "PutRequest": {"key": (1, "bytes"), "value": (2, "bytes"), "lease": (3, "int64")},
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
    "LeaseGrantRequest": {"TTL": (1, "int64")},
    "LeaseGrantResponse": {
        "header": (1, "ResponseHeader"),
        "ID": (2, "int64"),
        "TTL": (3, "int64"),
    },
    "LeaseRevokeRequest": {"ID": (1, "int64")},
    "LeaseRevokeResponse": {"header": (1, "ResponseHeader")},
    "LeaseKeepAliveRequest": {"ID": (1, "int64")},
    "LeaseKeepAliveResponse": {"header": (1, "ResponseHeader"), "TTL": (3, "int64")},
    "WatchCreateRequest": {
        "key": (1, "bytes"),
        "range_end": (2, "bytes"),
        "start_revision": (3, "int64"),
    },
    "WatchProgressRequest": {},
    "WatchRequest": {
        "create_request": (1, "WatchCreateRequest"),
        "progress_request": (3, "WatchProgressRequest"),
    },
    "Event": {"type": (1, "int32"), "kv": (2, "KeyValue")},
    "WatchResponse": {
        "header": (1, "ResponseHeader"),
        "created": (3, "bool"),
        "canceled": (4, "bool"),
        "compact_revision": (5, "int64"),
        "cancel_reason": (6, "string"),
        "events": (11, "repeated Event"),
    },
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
LeaseGrantRequest = _class("LeaseGrantRequest")
LeaseGrantResponse = _class("LeaseGrantResponse")
LeaseRevokeRequest = _class("LeaseRevokeRequest")
LeaseRevokeResponse = _class("LeaseRevokeResponse")
LeaseKeepAliveRequest = _class("LeaseKeepAliveRequest")
LeaseKeepAliveResponse = _class("LeaseKeepAliveResponse")
WatchCreateRequest = _class("WatchCreateRequest")
WatchProgressRequest = _class("WatchProgressRequest")
WatchRequest = _class("WatchRequest")
WatchResponse = _class("WatchResponse")

_EQUAL: Final = 0
_BY_VERSION: Final = 0
_BY_VALUE: Final = 3
DELETED: Final = 1
"""Type of an event: the key is gone. Any other put a value."""


def has_version(key: bytes, version: int) -> Any:
    """A condition: etcd counts so many puts of the key since it was made; 0 = it is absent."""
    return Condition(result=_EQUAL, target=_BY_VERSION, key=key, version=version)


def has_value(key: bytes, value: bytes) -> Any:
    """A condition: the key is there with this value."""
    return Condition(result=_EQUAL, target=_BY_VALUE, key=key, value=value)


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    """An operation of a transaction; with a lease the key goes when that ends."""
    return RequestOp(request_put=PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> Any:
    """An operation of a transaction."""
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key))


def delete_all(prefix: bytes) -> Any:
    """An operation of a transaction: every key that starts so."""
    request = DeleteRangeRequest(key=prefix, range_end=end_of(prefix))
    return RequestOp(request_delete_range=request)


def watch(key: bytes, range_end: bytes, start_revision: int) -> Any:
    """The first request of a watch: all changes of these keys from a revision of etcd on."""
    create = WatchCreateRequest(key=key, range_end=range_end, start_revision=start_revision)
    return WatchRequest(create_request=create)


def ask_progress() -> Any:
    """A request to a watch: say that you live."""
    return WatchRequest(progress_request=WatchProgressRequest())


def read(key: bytes) -> Any:
    """An operation of a transaction."""
    return RequestOp(request_range=RangeRequest(key=key))


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that start so. The prefix is UTF-8, whose bytes are never 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
