"""Our errors as gRPC statuses, and gRPC's own failures as our errors: the only mapping there is.

An error travels as a status code with a ``google.rpc.ErrorInfo`` (domain ``icecore``) in the
trailers, so clients in any language can read it. Statuses that gRPC itself makes up are mapped to
the nearest class.
"""

import logging
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from icecore import errors
from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    UnavailableError,
    error_from_reason,
)
from icecore.process.log import event
from icecore.rpc.ports import STRANGER

_log = logging.getLogger(__name__)

DETAILS_KEY = "grpc-status-details-bin"
"""The trailer that holds the serialized ``google.rpc.Status``."""
_DOMAIN = "icecore"
MESSAGE_CHARACTERS_MAX = 1000  # trailers share 8 KiB; too large ones would break the whole answer
_METADATA_CHARACTERS_MAX = 200

_Code = grpc.StatusCode
_CODES: dict[type[IcecoreError], grpc.StatusCode] = {
    errors.InvalidRequestError: _Code.INVALID_ARGUMENT,
    errors.TopicExistsError: _Code.ALREADY_EXISTS,
    errors.OffsetOutOfRangeError: _Code.OUT_OF_RANGE,
    errors.UnsupportedError: _Code.UNIMPLEMENTED,
    errors.PermissionDeniedError: _Code.PERMISSION_DENIED,
    errors.UnknownTopicError: _Code.NOT_FOUND,
    errors.ThrottledError: _Code.RESOURCE_EXHAUSTED,
    errors.OutOfSpaceError: _Code.RESOURCE_EXHAUSTED,
    errors.ConflictError: _Code.ABORTED,
    errors.RequestTimeoutError: _Code.DEADLINE_EXCEEDED,
    errors.UnavailableError: _Code.UNAVAILABLE,
    errors.LeaderLostError: _Code.UNAVAILABLE,
    errors.RollingError: _Code.UNAVAILABLE,
    errors.ReadOnlyError: _Code.UNAVAILABLE,
    errors.ObjectStoreBusyError: _Code.UNAVAILABLE,
    errors.NotEnoughReplicasError: _Code.UNAVAILABLE,
    errors.NotEnoughReplicasAfterAppendError: _Code.UNAVAILABLE,
    errors.StorageError: _Code.DATA_LOSS,
    errors.InternalError: _Code.INTERNAL,
}
_PLAIN_STATUSES: dict[grpc.StatusCode, type[IcecoreError]] = {
    _Code.UNAVAILABLE: errors.UnavailableError,
    _Code.CANCELLED: errors.UnavailableError,
    _Code.DEADLINE_EXCEEDED: errors.RequestTimeoutError,
    _Code.UNIMPLEMENTED: errors.UnsupportedError,
    _Code.INVALID_ARGUMENT: errors.InvalidRequestError,
    _Code.PERMISSION_DENIED: errors.PermissionDeniedError,
    _Code.UNAUTHENTICATED: errors.PermissionDeniedError,
    _Code.RESOURCE_EXHAUSTED: errors.ThrottledError,
}
_NO_HTTP2 = ("Expected SETTINGS frame", "http1.x server")
"""How gRPC says that another program listens there."""
_BROKEN_TRANSPORT = ("RST_STREAM", "GOAWAY", "Stream removed", "Connection reset", "Socket closed")


def status_of(error: IcecoreError) -> tuple[grpc.StatusCode, bytes]:
    """The gRPC code of an error and its serialized ``google.rpc.Status``."""
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), None)
    code = code or _Code.FAILED_PRECONDITION
    short = {name: value[:_METADATA_CHARACTERS_MAX] for name, value in error.metadata.items()}
    status = status_pb2.Status(code=code.value[0], message=error.message[:MESSAGE_CHARACTERS_MAX])
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=short)
    status.details.add().Pack(info)
    return code, status.SerializeToString()


def error_of(rpc_error: grpc.aio.AioRpcError) -> IcecoreError:
    """The error that a failed call means to us."""
    trailers: Any = rpc_error.trailing_metadata() or ()
    for key, value in trailers:
        if key == DETAILS_KEY and (found := _error_in_details(value)) is not None:
            return found
    code, details = rpc_error.code(), rpc_error.details() or ""
    if code is _Code.RESOURCE_EXHAUSTED and "larger than max" in details:
        return InvalidRequestError(details)
    vague = code is _Code.UNKNOWN or code is _Code.INTERNAL
    if vague and any(sign in details for sign in _BROKEN_TRANSPORT):
        return UnavailableError(details)
    found = _PLAIN_STATUSES.get(code, InternalError)(f"{code.name}: {details}")
    if any(sign in details for sign in _NO_HTTP2):
        found.metadata[STRANGER] = "true"
    return found


def _error_in_details(value: bytes) -> IcecoreError | None:
    info = error_details_pb2.ErrorInfo()
    try:
        status = status_pb2.Status.FromString(value)
        for detail in status.details:
            if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == _DOMAIN:
                return error_from_reason(info.reason, status.message, dict(info.metadata))
    except DecodeError:
        event(_log, logging.WARNING, "error_details_unreadable")
    return None
