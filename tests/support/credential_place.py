"""A place on loopback that nodes ask for credentials, as they ask a virtual machine's metadata."""

import contextlib
import datetime
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WRONG = {"AWS_ACCESS_KEY_ID": "ENDED", "AWS_SECRET_ACCESS_KEY": "x" * 40, "AWS_SESSION_TOKEN": "y"}
_NAMES = {
    "AWS_ACCESS_KEY_ID": "AccessKeyId",
    "AWS_SECRET_ACCESS_KEY": "SecretAccessKey",
    "AWS_SESSION_TOKEN": "SessionToken",
}


class CredentialPlace:
    """A place whose credentials end soon, so that nodes ask for them all the time."""

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
