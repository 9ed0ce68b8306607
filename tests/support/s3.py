"""An S3 server for tests, whichever it is: its addresses, who may do how much, the objects in it.

Two servers are behind it. moto's (``moto_server.py``) comes with ``make setup``, so it runs where
tests do. MinIO (``minio.py``) runs where ``make setup-minio`` has built it. Both pass
``tests/conformance/test_s3_servers.py``. Fixtures are in ``s3_servers.py``.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUCKET = "icecore-tests"
REGION = "eu-central-1"
USER, PASSWORD = "icecore-tests", "not-a-secret"
ALL = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:GetBucketLocation")
_ANYBODY = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
_VERSION = "2012-10-17"
_STOP_S = 20.0
_PATIENT = {"connect_timeout": 10, "read_timeout": 30, "retries": {"total_max_attempts": 1}}


def s3_credentials() -> dict[str, str]:
    """Credentials of a user who may do everything, as environment variables."""
    return {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD}


def s3_access(server: "S3Server") -> dict[str, str]:
    """Variables for a process that is told of the server by nothing else."""
    return {**s3_credentials(), "AWS_REGION": REGION, "AWS_ENDPOINT_URL": server.endpoint}


@dataclass(frozen=True)
class S3Server:
    """A server that runs, with one bucket, whose region it insists on."""

    kind: str
    endpoint: str
    console: str = ""
    """Address of MinIO's web pages, which do not take S3 requests."""

    def client(self, service: str = "s3", region: str = REGION) -> Any:
        """AWS's own library, which looks at a bucket without ours, as ``USER``."""
        import boto3  # half a second, which who only starts a server need not wait
        from botocore.config import Config

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=region,
            aws_access_key_id=USER,
            aws_secret_access_key=PASSWORD,
            config=Config(
                request_checksum_calculation="when_required",
                s3={"addressing_style": "path"},
                **_PATIENT,
            ),
        )

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of all objects of the bucket that begin with the prefix."""
        pages = (
            self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        )
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def credentials(self, actions: Sequence[str] = ALL) -> dict[str, str]:
        """Temporary ones that may do this in the bucket and nothing else, as variables."""
        allowed = {
            "Effect": "Allow",
            "Action": [*actions],
            "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
        }
        policy = json.dumps({"Version": _VERSION, "Statement": [allowed]})
        role, name = "arn:aws:iam::123456789012:role/any", "tests"
        if self.kind == "moto":  # the policy of a session is not looked at there, a role's is
            role, policy = self._role(policy), ""
        asked = {"RoleArn": role, "RoleSessionName": name, **({"Policy": policy} if policy else {})}
        found = self.client("sts").assume_role(**asked)["Credentials"]
        return {
            "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
            "AWS_SESSION_TOKEN": found["SessionToken"],
        }

    def _role(self, policy: str) -> str:
        iam = self.client("iam")
        name = f"role-{len(iam.list_roles()['Roles'])}"
        trust = json.dumps({"Version": _VERSION, "Statement": [_ANYBODY]})
        made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
        iam.put_role_policy(RoleName=name, PolicyName="bucket", PolicyDocument=policy)
        arn: str = made["Role"]["Arn"]
        return arn


@contextlib.contextmanager
def running_moto(log: Path | None = None) -> Iterator[S3Server]:
    """A server with one bucket, in its own process.

    Args:
        log: For its complaints; where ours goes without.
    """
    command = [sys.executable, "-m", "tests.support.moto_server"]
    with contextlib.ExitStack() as stack:
        errors = None if log is None else stack.enter_context(log.open("wb"))
        process = stack.enter_context(
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            port = process.stdout.readline().decode().strip()
            assert port, "moto's server did not start: its standard error says why"
            yield S3Server("moto", f"http://127.0.0.1:{port}")
        finally:
            process.stdin.close()  # which ends it
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
