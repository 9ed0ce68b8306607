"""Credentials of a MinIO server that may do less, or end: from its STS, and from a place that nodes
ask for them, as they ask the metadata of a virtual machine."""

import contextlib
import datetime
import hashlib
import hmac
import json
import threading
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.minio import BUCKET, PASSWORD, REGION, USER, Minio

ALL = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:GetBucketLocation")
WRONG = {"AWS_ACCESS_KEY_ID": "ENDED", "AWS_SECRET_ACCESS_KEY": "x" * 40, "AWS_SESSION_TOKEN": "y"}
_NAMES = {
    "AWS_ACCESS_KEY_ID": "AccessKeyId",
    "AWS_SECRET_ACCESS_KEY": "SecretAccessKey",
    "AWS_SESSION_TOKEN": "SessionToken",
}


def credentials(server: Minio, actions: Sequence[str] = ALL) -> dict[str, str]:
    """Temporary ones that may do this in the bucket and nothing else, as environment variables."""
    allowed = {
        "Effect": "Allow",
        "Action": [*actions],
        "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    fields = {"Action": "AssumeRole", "Version": "2011-06-15", "DurationSeconds": "3600"}
    body = urllib.parse.urlencode({**fields, "Policy": policy}).encode()
    request = urllib.request.Request(server.endpoint, body, _signed(server.endpoint, body))
    with urllib.request.urlopen(request, timeout=10) as answer:
        tree = ElementTree.fromstring(answer.read())
    found = {each.tag.rpartition("}")[2]: each.text or "" for each in tree.iter()}
    return {variable: found[name] for variable, name in _NAMES.items()}


def _signed(endpoint: str, body: bytes) -> dict[str, str]:
    """Headers of a POST to / by AWS's Signature Version 4."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "host": endpoint.removeprefix("http://"),
        "x-amz-date": now,
    }
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    asked = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{now[:8]}/{REGION}/sts/aws4_request"
    digest = hashlib.sha256(asked.encode()).hexdigest()
    key = f"AWS4{PASSWORD}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    authorization = f"AWS4-HMAC-SHA256 Credential={USER}/{scope}, SignedHeaders={names}, "
    return {**headers, "authorization": f"{authorization}Signature={key.hex()}"}


class CredentialPlace:
    """What it gives is asked for again all the time, since it ends soon."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self.asked = 0
        self.url = ""


@contextlib.contextmanager
def credential_place(given: dict[str, str]) -> Iterator[CredentialPlace]:
    """On loopback, as long as it is used."""
    place = CredentialPlace(given)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place.asked += 1
            soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
            names = {**_NAMES, "AWS_SESSION_TOKEN": "Token"}
            answer: dict[str, Any] = {names[each]: text for each, text in place.given.items()}
            answer["Expiration"] = soon.strftime("%Y-%m-%dT%H:%M:%SZ")
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        place.url = f"http://127.0.0.1:{server.server_port}/credentials"
        yield place
        server.shutdown()
        thread.join()
