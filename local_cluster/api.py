"""A small HTTPS client of the API server: JSON in, JSON out, with a client certificate or a token.

Not the `kubernetes` client: importing it takes one to three seconds, and a cluster boots in three.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import urllib3

from local_cluster.certificates import KeyPair
from local_cluster.patience import HANG_S

Object = dict[str, Any]
"""A Kubernetes object, as JSON has it."""

CONNECTIONS = 8
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
AS_TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"
"""What `kubectl get` asks for: the columns that a kind is printed with."""


class ApiError(RuntimeError):
    """The API server refused a request; its own words are in the text."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status}, {message}")
        self.status = status


class ApiUnreachable(OSError):
    """No answer: the server is down or not up yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The status and the body of an HTTP answer."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Return whether the request succeeded."""
        return self.status < 400


class Api:
    """Requests to one HTTPS server of the cluster, as one user. Safe to use from several threads."""

    def __init__(self, url: str, ca: str, pair: KeyPair | None = None, token: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS,
            block=True,
            retries=False,
            timeout=HANG_S,
            ca_certs=ca,
            cert_file=str(pair.certificate) if pair else None,
            key_file=str(pair.key) if pair else None,
        )

    def send(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Answer:
        """One request, any answer."""
        headers = self._headers | {"Accept": accept, "Content-Type": content_type}
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, self.url + path, body=content, headers=headers)
        except urllib3.exceptions.HTTPError as problem:
            raise ApiUnreachable(f"{method} {self.url}{path}: {problem}") from problem
        return Answer(answer.status, answer.data)

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        """One request that must succeed; the object in the answer."""
        answer = self.send(method, path, body, content_type, accept)
        if not answer.ok:
            raise ApiError(method, path, answer.status, _message(answer.body))
        decoded: Object = json.loads(answer.body)
        return decoded

    def get(self, path: str) -> Object:
        """Return the object or list at the path."""
        return self.call("GET", path)

    def find(self, path: str) -> Object | None:
        """The object, None when there is none."""
        answer = self.send("GET", path)
        if answer.status == 404:
            return None
        if not answer.ok:
            raise ApiError("GET", path, answer.status, _message(answer.body))
        decoded: Object = json.loads(answer.body)
        return decoded

    def table(self, path: str) -> Object:
        """A collection as `kubectl get` prints it: a Table with `columnDefinitions` and `rows`."""
        return self.call("GET", path, accept=AS_TABLE)

    def post(self, path: str, body: Object) -> Object:
        """Create an object and return it as it is now."""
        return self.call("POST", path, body)

    def create(self, path: str, body: Object) -> bool:
        """Create an object; False when one of that name is there already."""
        answer = self.send("POST", path, body)
        if not answer.ok and answer.status != 409:
            raise ApiError("POST", path, answer.status, _message(answer.body))
        return answer.ok

    def patch(self, path: str, body: Object) -> Object:
        """A JSON merge patch."""
        return self.call("PATCH", path, body, MERGE_PATCH)

    def delete(self, path: str, *, grace_s: int | None = None) -> Object:
        """Delete the object at the path."""
        return self.call("DELETE", path if grace_s is None else f"{path}?gracePeriodSeconds={grace_s}")

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()


def _message(body: bytes) -> str:
    """The sentence in a Status object, or the body as it came."""
    try:
        status = json.loads(body)
        return str(status["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
