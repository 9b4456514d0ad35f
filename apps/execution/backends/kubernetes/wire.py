"""Speaks to one Kubernetes by the official client. Answers are read raw: typed lists are slow.

Nothing here knows of allocations. Whatever keeps an answer from coming is an OutsideError.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import urllib3
from kubernetes import client

from apps.core.errors import OutsideError

PATIENCE_S: Final = 20.0
PAGE: Final = 500  # objects an answer: one of many thousand would be built whole by the API server
_LIST_TRIES: Final = 3
# Not 401 and 403: tokens run out and are changed, quotas of a namespace are full for a while.
_REFUSED_FOR_GOOD: Final = frozenset({400, 422})

Item = dict[str, Any]


class NoAnswer(OutsideError):
    """Nobody answered: whether what was asked for was done is not known."""


class KubernetesError(OutsideError):
    """The API server answered that it will not."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message, permanent=code in _REFUSED_FOR_GOOD)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a Kubernetes is, and as whom to speak to it.

    Attributes:
        token: Of a ServiceAccount.
        ca_pem: Whom to believe; empty: whom the machine believes.
    """

    api_url: str
    token: str
    namespace: str
    ca_pem: str = ""


class Wire:
    """A connection. Closed by whoever made it."""

    def __init__(self, address: Address) -> None:
        config = client.Configuration(
            host=address.api_url,
            api_key={"BearerToken": f"Bearer {address.token}"},
            ca_cert_data=address.ca_pem or None,
            retries=0,  # what is not known to be done is looked at, not said again unseen
        )
        self._api = client.ApiClient(config)
        self._core, self._batch = client.CoreV1Api(self._api), client.BatchV1Api(self._api)
        self._version = client.VersionApi(self._api)
        self._namespace = address.namespace

    def close(self) -> None:
        self._api.rest_client.pool_manager.clear()

    def version(self) -> str:
        return str(self._read(self._version.get_code)["gitVersion"])

    # Jobs

    def jobs(self, selector: str) -> list[Item]:
        return self._list(self._batch.list_namespaced_job, self._namespace, label_selector=selector)

    def create_job(self, body: Mapping[str, Any]) -> None:
        """Twice changes nothing the second time: names are ours alone."""
        try:
            self._read(self._batch.create_namespaced_job, self._namespace, body)
        except KubernetesError as error:
            if error.code != 409:
                raise

    def patch_job(self, job: Item, steps: Sequence[Mapping[str, Any]]) -> bool:
        """Change this very Job; False: it is not there any more."""
        return self._patch(self._batch.patch_namespaced_job, job, steps)

    def delete_job(self, job: Item) -> None:
        """It goes when its pods are gone."""
        self._delete(self._batch.delete_namespaced_job, job, propagation_policy="Foreground")

    # Pods

    def pods(self, selector: str) -> list[Item]:
        """Pods of our namespace."""
        return self._list(self._core.list_namespaced_pod, self._namespace, label_selector=selector)

    def all_pods(self) -> list[Item]:
        """Pods of all namespaces that are on a node and not over."""
        return self._list(
            self._core.list_pod_for_all_namespaces,
            field_selector="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
        )

    def patch_pod(self, pod: Item, steps: Sequence[Mapping[str, Any]]) -> bool:
        return self._patch(self._core.patch_namespaced_pod, pod, steps)

    def hasten_pod(self, pod: Item, grace_s: int) -> None:
        """Have a pod that is leaving be ended sooner. Never at once: it may still run."""
        self._delete(self._core.delete_namespaced_pod, pod, grace_period_seconds=max(grace_s, 1))

    def log(self, pod: Item, limit_bytes: int) -> bytes:
        """What it wrote, from the beginning; nothing where it has not begun, or its node does not tell."""
        try:
            answer = self._call(
                self._core.read_namespaced_pod_log,
                pod["metadata"]["name"],
                self._namespace,
                limit_bytes=limit_bytes,
            )
        except KubernetesError:
            return b""
        return bytes(answer.data)

    # Nodes

    def nodes(self) -> list[Item]:
        return self._list(self._core.list_node)

    def patch_node(self, name: str, body: Mapping[str, Any]) -> None:
        self._read(self._core.patch_node, name, body)

    # Within

    def _list(self, call: Callable[..., Any], *args: Any, **which: Any) -> list[Item]:
        """All of it as of one moment, page by page; from the beginning where that moment was compacted meanwhile."""
        for n_left in reversed(range(_LIST_TRIES)):
            try:
                return self._pages(call, *args, **which)
            except KubernetesError as error:
                if error.code != 410 or not n_left:
                    raise
        raise AssertionError("the last try raises or returns")

    def _pages(self, call: Callable[..., Any], *args: Any, **which: Any) -> list[Item]:
        items: list[Item] = []
        following: dict[str, str] = {}
        while True:
            found = self._read(call, *args, **which, limit=PAGE, **following)
            items += found["items"]
            token = found["metadata"].get("continue")
            if not token:
                return items
            following = {"_continue": token}

    def _patch(self, call: Callable[..., Any], one: Item, steps: Sequence[Mapping[str, Any]]) -> bool:
        meta = one["metadata"]
        guard = {"op": "test", "path": "/metadata/uid", "value": meta["uid"]}
        try:
            self._read(call, meta["name"], self._namespace, [guard, *steps])
        except KubernetesError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _delete(self, call: Callable[..., Any], one: Item, **how: Any) -> None:
        meta = one["metadata"]
        body = {"preconditions": {"uid": meta["uid"]}}
        try:
            self._read(call, meta["name"], self._namespace, body=body, **how)
        except KubernetesError as error:
            if error.code not in (404, 409):  # gone, or another one of that name is there
                raise

    def _read(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return json.loads(self._call(call, *args, **more).data)

    @staticmethod
    def _call(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            answer = call(*args, **more, _preload_content=False, _request_timeout=PATIENCE_S)
            data = answer.data
        except client.ApiException as error:
            raise KubernetesError(f"Kubernetes refuses: {error.reason}.", code=error.status or 0) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswer(f"Kubernetes does not answer: {type(error).__name__}.") from error
        except ValueError as error:
            raise OutsideError(f"Kubernetes cannot be given this: {error}"[:500], permanent=True) from error
        if not 200 <= answer.status < 300:
            raise KubernetesError(f"Kubernetes refuses: {_said(data)}", code=answer.status)
        return answer


def _said(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return "it does not say why."
