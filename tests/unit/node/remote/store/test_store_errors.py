"""An error of the library becomes the error that says what to do."""

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError

from icecore.errors import IcecoreError, OutOfSpaceError
from icecore.rpc.statuses import status_of
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
from icecore_node.remote.store.store_errors import translated


def _answer(status: int, code: str = "") -> str:
    body = f"<Error><Code>{code}</Code><Message>x</Message></Error>" if code else ""
    return (
        f"Generic S3 error: Error performing PUT http://h/b/a in 2ms - Server returned non-2xx "
        f"status code: {status} Whatever: {body}\n\nDebug source:\nGeneric {{ secrets }}"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GenericError(_answer(503, "SlowDown")), ObjectStoreBusyError),
        (GenericError(_answer(500)), ObjectStoreBusyError),
        (GenericError(_answer(429)), ObjectStoreBusyError),
        (GenericError(_answer(200, "InternalError")), ObjectStoreBusyError),
        (GenericError("PUT after 5 retries - HTTP error: timed out"), ObjectStoreBusyError),
        (GenericError(_answer(403, "ExpiredToken")), ObjectDeniedError),
        (PermissionDeniedError(_answer(403)), ObjectDeniedError),
        (
            GenericError("DeleteObjects failed: Denied. (code: AccessDenied)"),
            ObjectDeniedError,
        ),
        (PermissionError(13, "Permission denied"), ObjectDeniedError),
        (GenericError(_answer(404, "NoSuchBucket")), BucketMissingError),
        (FileNotFoundError(_answer(404, "NoSuchBucket")), BucketMissingError),
        (GenericError(_answer(301, "PermanentRedirect")), ObjectStoreSetupError),
        (GenericError(_answer(301)), ObjectStoreSetupError),
        (GenericError(_answer(400, "AuthorizationHeaderMalformed")), ObjectStoreSetupError),
        (FileNotFoundError(_answer(404, "NoSuchKey")), ObjectMissingError),
        (AlreadyExistsError("x"), ObjectExistsError),
        (GenericError(_answer(416, "InvalidRange")), ObjectTooShortError),
        (OSError(28, "No space left on device"), OutOfSpaceError),
        (GenericError("something new"), ObjectStoreError),
    ],
)
def test_classes(error: Exception, expected: type[IcecoreError]) -> None:
    found = translated(error, "t/0/a")
    assert type(found) is expected
    assert "secrets" not in found.message
    assert "\n" not in found.message


def test_only_what_may_pass_is_tried_again() -> None:
    busy = translated(GenericError(_answer(503)), "a")
    denied = translated(PermissionDeniedError(_answer(403)), "a")
    assert busy.retriable and not denied.retriable
    assert status_of(busy)[0].name == "UNAVAILABLE"


def test_colours_of_the_library_are_left_out() -> None:
    found = translated(GenericError("Kernel error \x1b[31m↳\x1b[0m why"), "a")
    assert found.message == "a: Kernel error ↳ why"


def test_long_texts_are_cut() -> None:
    assert len(translated(GenericError("x" * 5000), "a").message) < 400
