"""An S3 server as a process of its own: moto's, and what AWS documents and moto leaves out.

Run as ``python -m tests.support.moto_server``; the first line that it prints is its port. It ends
when its standard input does, so that it outlives nobody. Added to moto, as AWS documents it:

* A conditional put looks and writes in one step, whoever else writes meanwhile.
* A body that does not fit its signature or its checksum is refused.
* An upload that was aborted is refused as one that is not there.
* A signature for another region than the bucket's is refused, and so is a name no bucket can have.
* Only who signs as a known user is answered; moto itself checks signatures and rights then.
"""

import base64
import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final
from urllib.parse import parse_qs

from moto import settings
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import S3Backend, s3_backends
from werkzeug.serving import make_server

from tests.support.s3 import BUCKET, PASSWORD, REGION, USER

PARTITION: Final = "aws"
_ANYTHING: Final = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
)
_SCOPE: Final = re.compile(r"Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request")
_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}")

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Strict:
    """A WSGI application that is in front of moto's, for one region."""

    def __init__(self, moto: Application) -> None:
        self._moto = moto
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        with self._lock:  # nothing is sent to anybody within it
            refusal = refused(environ, body)
            if refusal is None:
                return [*self._moto(environ, start_response)]
        data = b"" if environ["REQUEST_METHOD"] == "HEAD" else refusal.body()
        headers = [
            ("Content-Type", "application/xml"),
            ("Content-Length", str(len(data))),
            ("x-amz-bucket-region", REGION),
        ]
        start_response(refusal.status, headers)
        return [data]


@dataclass(frozen=True)
class Refusal:
    """An error that S3 answers and moto does not."""

    code: str
    message: str
    status: str = "400 Bad Request"
    more: str = ""

    def body(self) -> bytes:
        """Write an error as S3 does."""
        inner = f"<Code>{self.code}</Code><Message>{self.message}</Message>{self.more}"
        return f"<Error>{inner}</Error>".encode()


def refused(environ: dict[str, Any], body: bytes) -> Refusal | None:
    """Find the error of a request that no object in the bucket can change."""
    scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    if scope is None:
        return Refusal("AccessDenied", "Access Denied", "403 Forbidden")  # nothing is public
    region, service = scope.groups()
    if service != "s3":
        return None
    if region != REGION:
        return Refusal(
            "AuthorizationHeaderMalformed",
            f"The authorization header is malformed; the region '{region}' is wrong; "
            f"expecting '{REGION}'",
            more=f"<Region>{REGION}</Region>",
        )
    return _wrong_body(environ, body) or _wrong_name(environ)


def _wrong_body(environ: dict[str, Any], body: bytes) -> Refusal | None:
    """It is not what was signed, or what the checksum is of."""
    signed_hash = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    checksum = environ.get("HTTP_X_AMZ_CHECKSUM_SHA256", "")
    digest = hashlib.sha256(body)
    if _SHA256_HEX.fullmatch(signed_hash) and signed_hash != digest.hexdigest():
        return Refusal(
            "XAmzContentSHA256Mismatch",
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        )
    if checksum and checksum != base64.b64encode(digest.digest()).decode():
        return Refusal(
            "BadDigest", "The SHA256 you specified did not match the calculated checksum."
        )
    return None


def _wrong_name(environ: dict[str, Any]) -> Refusal | None:
    """No bucket can have this one, or no upload has it any more."""
    bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    if bucket and not _BUCKET_NAME.fullmatch(bucket):
        return Refusal("InvalidBucketName", "The specified bucket is not valid.")
    [upload] = parse_qs(environ["QUERY_STRING"]).get("uploadId", [""])
    if bucket != BUCKET or not upload or environ["REQUEST_METHOD"] != "POST":
        return None
    found = _s3().get_bucket(bucket)
    done = found.keys.get(key)
    if upload in found.multiparts or (done and done.multipart and done.multipart.id == upload):
        return None
    return Refusal("NoSuchUpload", "The specified upload does not exist.", "404 Not Found")


def _s3() -> S3Backend:
    return s3_backends[DEFAULT_ACCOUNT_ID][PARTITION]


class _Handler(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        if type == "error":
            super().log(type, message, *args)


def main() -> None:
    """Serve until standard input ends."""
    _s3().create_bucket(BUCKET, REGION)
    iam = iam_backends[DEFAULT_ACCOUNT_ID][PARTITION]
    iam.create_user(REGION, USER)
    iam.put_user_policy(USER, "everything", _ANYTHING)
    key = iam.create_access_key(USER)
    key.access_key_id, key.secret_access_key = USER, PASSWORD
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    application = Strict(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)  # no thread that serves is waited for: nothing is kept


if __name__ == "__main__":
    main()
