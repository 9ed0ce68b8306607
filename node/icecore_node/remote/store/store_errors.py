"""Translates errors of an object store's library into ours.

The library has few classes of its own and calls most failures generic, so the HTTP status and the
code in the answer's XML decide. Its internal details are left out.
"""

import re
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from icecore.errors import IcecoreError, OutOfSpaceError
from icecore_node.remote.store.object_store import (
    BucketMissingError,
    ObjectDeniedError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectStoreBusyError,
    ObjectStoreError,
    ObjectStoreSetupError,
    ObjectTooShortError,
)

LIBRARY_ERRORS: Final = (BaseError, OSError)
"""All that a call of the library raises when the store, the network or the disk is the cause."""

_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""Error code: as in an answer's XML, or as the library prints it for one object among several."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"status code: (\d{3})")
_TEXT_CHARACTERS_MAX = 300
_DENIED = frozenset(
    [
        "AccessDenied",
        "AccountProblem",
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    ]
)
_SETUP = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct the URL",
    "InvalidBucketName": "the bucket's name is not valid: correct the URL",
    "ContainerNotFound": "the container does not exist: create it, or correct the URL",
    "AuthorizationHeaderMalformed": "the region is wrong: set the bucket's own",
    "PermanentRedirect": "the bucket is in another region: set that one, or its endpoint",
    "TemporaryRedirect": "the bucket is in another region: set that one, or its endpoint",
    "IllegalLocationConstraintException": "the region is wrong: set the bucket's own",
    "InvalidArgument": "the endpoint does not take such requests: is it the one of the S3 API?",
}
_MISSING = frozenset(("NoSuchBucket", "ContainerNotFound"))
_BUSY = frozenset(("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"))
_RANGE_TEXTS = ("Invalid range", "range was invalid", "Requested range")


def translated(error: Exception, key: str) -> IcecoreError:
    """Return our error for one of the library; ``key`` is for people."""
    text = str(error)
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    status = int(next(iter(_STATUS.findall(text)), "0"))
    short = _short(text)
    if code in _MISSING:
        return BucketMissingError(f"{_SETUP[code]} ({short})", code=code)
    if code in _SETUP:
        return ObjectStoreSetupError(f"{_SETUP[code]} ({short})", code=code)
    if code in _DENIED or isinstance(error, _DENIED_CLASSES):
        return ObjectDeniedError(
            f"the object store refuses {key}: check the credentials and what they may do ({short})",
            code=code,
        )
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return ObjectExistsError(f"{key} exists", key=key)
    if isinstance(error, FileNotFoundError):
        return ObjectMissingError(f"{key} is not there", key=key)
    if status == 416 or any(part in text for part in _RANGE_TEXTS):
        return ObjectTooShortError(f"{key} is too short ({short})", key=key)
    if "No space left" in text or "StorageFull" in text:
        return OutOfSpaceError(f"no space for {key} ({short})")
    if status in (408, 429) or status >= 500 or code in _BUSY or "HTTP error" in text:
        return ObjectStoreBusyError(
            f"the object store can't be reached or fails for now; is the endpoint right? ({short})",
            key=key,
        )
    if status in (301, 307):
        return ObjectStoreSetupError(f"{_SETUP['PermanentRedirect']} ({short})")
    return ObjectStoreError(f"{key}: {short}", key=key)


_DENIED_CLASSES = (PermissionDeniedError, UnauthenticatedError, PermissionError)


def _short(text: str) -> str:
    """The first sentence, on one line."""
    head = " ".join(_COLOUR.sub("", text).partition("Debug source")[0].split())
    return head if len(head) <= _TEXT_CHARACTERS_MAX else head[:_TEXT_CHARACTERS_MAX] + "…"
