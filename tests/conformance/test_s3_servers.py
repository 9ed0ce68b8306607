"""Each S3 server of the tests keeps the documented promises of S3 that tiering builds on.

AWS's own library asks, without ours: a server that forgives our mistakes is noticed here.
"""

import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.support.s3 import ALL, BUCKET, PASSWORD, REGION, USER, S3Server
from tests.support.s3_servers import SERVERS

pytestmark = pytest.mark.parametrize("s3_server", SERVERS, indirect=True)
PART_BYTES = 5 << 20
"""The smallest part of an upload that is not its last."""
WRONG_SHA256 = "A" * 43 + "="


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Keys that no other test uses begin with it."""
    return f"{request.node.originalname}/"


@pytest.fixture
def client(s3_server: S3Server) -> Any:
    """AWS's client, as the user who may do everything."""
    return s3_server.client()


def refusal(call: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    """(status, code) of the error that it must answer."""
    with pytest.raises(ClientError) as raised:
        call(**arguments)
    answer = raised.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def put(client: Any, key: str, body: bytes = b"1", **more: Any) -> str:
    etag: str = client.put_object(Bucket=BUCKET, Key=key, Body=body, **more)["ETag"]
    return etag


def read(client: Any, key: str, **more: Any) -> bytes:
    data: bytes = client.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read()
    return data


def as_role(server: S3Server, *actions: str) -> Any:
    """A client that may do only this."""
    found = server.credentials(actions)
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=found["AWS_SESSION_TOKEN"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


# --- conditional puts ---------------------------------------------------------------------------


def test_a_put_if_absent(client: Any, prefix: str) -> None:
    put(client, prefix + "a", b"first", IfNoneMatch="*")
    asked = {"Bucket": BUCKET, "Key": prefix + "a", "Body": b"second", "IfNoneMatch": "*"}
    assert refusal(client.put_object, **asked) == (412, "PreconditionFailed")
    assert read(client, prefix + "a") == b"first"
    client.delete_object(Bucket=BUCKET, Key=prefix + "a")
    put(client, prefix + "a", b"third", IfNoneMatch="*")


def test_a_put_if_it_is_as_it_was(client: Any, prefix: str) -> None:
    old = put(client, prefix + "a", b"first")
    new = put(client, prefix + "a", b"second", IfMatch=old)
    assert old != new
    asked = {"Bucket": BUCKET, "Key": prefix + "a", "Body": b"third"}
    assert refusal(client.put_object, **asked, IfMatch=old) == (412, "PreconditionFailed")
    assert read(client, prefix + "a") == b"second"
    asked["Key"] = prefix + "absent"
    assert refusal(client.put_object, **asked, IfMatch=old) == (404, "NoSuchKey")


@pytest.mark.parametrize("condition", ["IfNoneMatch", "IfMatch"])
def test_one_of_many_writers_at_once_wins(client: Any, prefix: str, condition: str) -> None:
    for turn in range(4):
        key = f"{prefix}{condition}/{turn}"
        etag = "*" if condition == "IfNoneMatch" else put(client, key, b"before")

        def attempt(at: int, key: str = key, etag: str = etag) -> int:
            try:
                put(client, key, f"{at}".encode() * 1000, **{condition: etag})
            except ClientError as error:
                status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
                assert status in (409, 412)  # AWS has either for who comes too late
                return 0
            return 1

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(8))) == 1


# --- uploads in parts ---------------------------------------------------------------------------


def upload(client: Any, key: str, *sizes: int) -> dict[str, Any]:
    """All parts sent: what completes it."""
    made = client.create_multipart_upload(Bucket=BUCKET, Key=key)
    named = {"Bucket": BUCKET, "Key": key, "UploadId": made["UploadId"]}
    parts = []
    for number, size in enumerate(sizes, 1):
        sent = client.upload_part(**named, PartNumber=number, Body=bytes([number]) * size)
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    return {**named, "MultipartUpload": {"Parts": parts}}


def test_parts_are_an_object_once_they_are_complete(
    client: Any, s3_server: S3Server, prefix: str
) -> None:
    completing = upload(client, prefix + "a", PART_BYTES, 3)
    assert s3_server.keys(prefix) == []
    client.complete_multipart_upload(**completing)
    assert read(client, prefix + "a") == bytes([1]) * PART_BYTES + bytes([2]) * 3


def test_an_upload_is_completed_if_the_object_is_absent(client: Any, prefix: str) -> None:
    completing = upload(client, prefix + "a", 3)
    put(client, prefix + "a", b"before")
    asked = {**completing, "IfNoneMatch": "*"}
    assert refusal(client.complete_multipart_upload, **asked) == (412, "PreconditionFailed")
    assert read(client, prefix + "a") == b"before"


def test_an_upload_that_is_aborted_or_of_small_parts_is_none(
    client: Any, s3_server: S3Server, prefix: str
) -> None:
    completing = upload(client, prefix + "a", PART_BYTES - 1, 3)
    complete = client.complete_multipart_upload
    assert refusal(complete, **completing) == (400, "EntityTooSmall")
    named = {name: completing[name] for name in ("Bucket", "Key", "UploadId")}
    client.abort_multipart_upload(**named)
    assert refusal(complete, **completing) == (404, "NoSuchUpload")
    assert s3_server.keys(prefix) == []


# --- what is stored is what was sent ------------------------------------------------------------


def test_a_body_that_does_not_fit_its_checksum(
    client: Any, s3_server: S3Server, prefix: str
) -> None:
    asked = {"Bucket": BUCKET, "Key": prefix + "a", "Body": b"1", "ChecksumSHA256": WRONG_SHA256}
    assert refusal(client.put_object, **asked)[0] == 400
    assert s3_server.keys(prefix) == []
    made = client.create_multipart_upload(Bucket=BUCKET, Key=prefix + "b")
    part = {**asked, "Key": prefix + "b", "UploadId": made["UploadId"], "PartNumber": 1}
    assert refusal(client.upload_part, **part)[0] == 400


def test_a_body_that_is_altered_on_its_way(client: Any, s3_server: S3Server, prefix: str) -> None:
    def alter(request: Any, **_: Any) -> None:
        request.body = b"2"

    client.meta.events.register("request-created.s3.PutObject", sign_body)
    client.meta.events.register("before-send.s3.PutObject", alter)
    status, _ = refusal(client.put_object, Bucket=BUCKET, Key=prefix + "a", Body=b"1")
    assert status in (400, 403)
    assert s3_server.keys(prefix) == []


def sign_body(request: Any, **_: Any) -> None:
    """Sign the body too, as a request without TLS must; AWS's library leaves that to a setting."""
    request.context["client_config"] = Config(s3={"payload_signing_enabled": True})


# --- reads and listings -------------------------------------------------------------------------


def test_ranges(client: Any, prefix: str) -> None:
    put(client, prefix + "a", b"0123456789")
    answer = client.get_object(Bucket=BUCKET, Key=prefix + "a", Range="bytes=2-4")
    assert (answer["ContentRange"], answer["Body"].read()) == ("bytes 2-4/10", b"234")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert read(client, prefix + "a", Range="bytes=8-99") == b"89"
    asked = {"Bucket": BUCKET, "Key": prefix + "a", "Range": "bytes=10-12"}
    assert refusal(client.get_object, **asked) == (416, "InvalidRange")


def test_what_is_missing(client: Any, prefix: str) -> None:
    assert refusal(client.get_object, Bucket=BUCKET, Key=prefix + "a") == (404, "NoSuchKey")
    assert refusal(client.head_object, Bucket=BUCKET, Key=prefix + "a")[0] == 404
    named = {"Bucket": "no-such-bucket", "Key": prefix + "a"}
    assert refusal(client.get_object, **named) == (404, "NoSuchBucket")
    client.delete_object(Bucket=BUCKET, Key=prefix + "a")


def test_a_listing_has_pages_in_the_order_of_keys(client: Any, prefix: str) -> None:
    # Ours never name an object as a folder of others: MinIO's drives could not hold both.
    keys = [prefix + each for each in ("B", "a.", "a/b", "a0", "b-", "b.")]
    for key in reversed(keys):
        put(client, key)
    asked, pages = {"Bucket": BUCKET, "Prefix": prefix, "MaxKeys": 2}, list[list[str]]()
    is_more = True
    while is_more:  # a page without keys may be the last one
        page = client.list_objects_v2(**asked)
        pages.append([each["Key"] for each in page.get("Contents", ())])
        asked["ContinuationToken"] = page.get("NextContinuationToken")
        is_more = page["IsTruncated"]
    assert [each for each in pages if each] == [keys[0:2], keys[2:4], keys[4:6]]
    folders = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix, Delimiter="/")
    assert folders["CommonPrefixes"] == [{"Prefix": prefix + "a/"}]


# --- who may do how much ------------------------------------------------------------------------


def answer_of(url: str, *signer: str) -> tuple[int, str]:
    """(status, body) of a GET that is sent as it is: AWS's library corrects a wrong region.

    Args:
        url: Of an object.
        signer: Key, secret and region of who signs it, if anybody does.
    """
    request = AWSRequest("GET", url)
    if signer:
        key_id, secret, region = signer
        S3SigV4Auth(Credentials(key_id, secret), "s3", region).add_auth(request)
    sent = urllib.request.Request(url, headers=dict(request.headers))
    try:
        with urllib.request.urlopen(sent, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_who_signs_wrongly_or_not_at_all(client: Any, s3_server: S3Server, prefix: str) -> None:
    put(client, prefix + "a", b"text")
    url = f"{s3_server.endpoint}/{BUCKET}/{prefix}a"
    assert answer_of(url, USER, PASSWORD, REGION) == (200, "text")
    for signer, status, code in (
        ((USER, PASSWORD, "us-west-2"), 400, "AuthorizationHeaderMalformed"),
        ((USER, "somebody-elses", REGION), 403, "SignatureDoesNotMatch"),
        (("nobody", PASSWORD, REGION), 403, "InvalidAccessKeyId"),
        ((), 403, "AccessDenied"),
    ):
        found, body = answer_of(url, *signer)
        assert found == status and f"<Code>{code}</Code>" in body
        assert status == 403 or f"<Region>{REGION}</Region>" in body


def test_who_may_only_read(client: Any, s3_server: S3Server, prefix: str) -> None:
    put(client, prefix + "a")
    reader = as_role(s3_server, "s3:GetObject", "s3:ListBucket")
    assert read(reader, prefix + "a") == b"1"
    assert reader.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"] == 1
    for key in ("a", "b"):
        asked = {"Bucket": BUCKET, "Key": prefix + key, "Body": b"2"}
        assert refusal(reader.put_object, **asked) == (403, "AccessDenied")
    assert s3_server.keys(prefix) == [prefix + "a"]


def test_who_may_not_delete(client: Any, s3_server: S3Server, prefix: str) -> None:
    writer = as_role(s3_server, *(each for each in ALL if each != "s3:DeleteObject"))
    put(writer, prefix + "a")
    named = {"Bucket": BUCKET, "Key": prefix + "a"}
    assert refusal(writer.delete_object, **named) == (403, "AccessDenied")
    asked = {"Objects": [{"Key": prefix + "a"}]}
    answer = writer.delete_objects(Bucket=BUCKET, Delete=asked)
    assert [each["Code"] for each in answer["Errors"]] == ["AccessDenied"]
    assert not answer.get("Deleted")
    assert s3_server.keys(prefix) == [prefix + "a"]
    client.delete_objects(Bucket=BUCKET, Delete=asked)
    assert s3_server.keys(prefix) == []
