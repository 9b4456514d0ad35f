"""Speaks to one Kubernetes by the official client. Answers are read raw: typed lists are slow.

Nothing here knows of allocations. Whatever keeps an answer from coming is an OutsideError.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import urllib3
from kubernetes import client
from kubernetes.watch.watch import iter_resp_lines

from apps.core.errors import OutsideError

PATIENCE_S: Final = 20.0
PAGE: Final = 500  # objects an answer: one of many thousand would be built whole by the API server
_LIST_TRIES: Final = 3
# Not 401 and 403: tokens run out and are changed, quotas of a namespace are full for a while.
_REFUSED_FOR_GOOD: Final = frozenset({400, 422})

Item = dict[str, Any]


class Kind(StrEnum):
    """What is listed and watched."""

    JOBS = "jobs"  # of our namespace
    PODS = "pods"  # of our namespace
    BOUND_PODS = "bound pods"  # of all namespaces: those that are on a node and not over
    NODES = "nodes"


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

    def is_there(self) -> None:
        """Ask for nothing, as whoever may list Jobs. Raises OutsideError where that is not answered."""
        self._read(
            self._batch.list_namespaced_job, self._namespace, field_selector="metadata.name=-", limit=1
        )

    # Lists and watches

    def list_all(self, kind: Kind, selector: str = "", *, name: str = "") -> tuple[list[Item], str]:
        """All of a kind as of one moment, and the version that a watch goes on from.

        From the beginning again where that moment was compacted between two pages.
        """
        call, args, which = self._asked(kind, selector, name)
        for n_left in reversed(range(_LIST_TRIES)):
            try:
                return self._pages(call, *args, **which)
            except KubernetesError as error:
                if error.code != 410 or not n_left:
                    raise
        raise AssertionError("the last try raises or returns")

    def watch(
        self, kind: Kind, selector: str, *, since: str, stream_s: int, silence_s: float
    ) -> Iterator[Item]:
        """What changes, one event after another, until the server ends it after `stream_s`.

        Raises OutsideError when it breaks, or nothing comes for `silence_s`. An event may be an error itself.
        """
        call, args, which = self._asked(kind, selector)
        answer = self._call(
            call,
            *args,
            **which,
            watch=True,
            resource_version=since,
            allow_watch_bookmarks=True,
            timeout_seconds=stream_s,
            patience_s=silence_s,
            is_stream=True,
        )
        try:
            with _told():
                for line in iter_resp_lines(answer):
                    if line.strip():
                        yield json.loads(line)
        finally:
            answer.close()

    # Jobs

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

    def patch_node(self, node: Item, body: Mapping[str, Any]) -> bool:
        """Change this node as it was read; False: somebody has changed it meanwhile, or it is gone."""
        meta = {**body.get("metadata", {}), "resourceVersion": node["metadata"]["resourceVersion"]}
        try:
            self._read(self._core.patch_node, node["metadata"]["name"], {**body, "metadata": meta})
        except KubernetesError as error:
            if error.code in (404, 409):
                return False
            raise
        return True

    # Within

    def _asked(
        self, kind: Kind, selector: str, name: str = ""
    ) -> tuple[Callable[..., Any], tuple[str, ...], dict[str, str]]:
        which = {"label_selector": selector} if selector else {}
        if name:
            which["field_selector"] = f"metadata.name={name}"
        match kind:
            case Kind.JOBS:
                return self._batch.list_namespaced_job, (self._namespace,), which
            case Kind.PODS:
                return self._core.list_namespaced_pod, (self._namespace,), which
            case Kind.BOUND_PODS:
                which["field_selector"] = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
                return self._core.list_pod_for_all_namespaces, (), which
            case Kind.NODES:
                return self._core.list_node, (), which

    def _pages(self, call: Callable[..., Any], *args: Any, **which: Any) -> tuple[list[Item], str]:
        items: list[Item] = []
        following: dict[str, str] = {}
        while True:
            found = self._read(call, *args, **which, limit=PAGE, **following)
            items += found["items"]
            token = found["metadata"].get("continue")
            if not token:
                return items, found["metadata"]["resourceVersion"]
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
    def _call(
        call: Callable[..., Any],
        *args: Any,
        patience_s: float = PATIENCE_S,
        is_stream: bool = False,
        **more: Any,
    ) -> Any:
        with _told():
            answer = call(*args, **more, _preload_content=False, _request_timeout=patience_s)
            is_good = 200 <= answer.status < 300
            data = b"" if is_stream and is_good else answer.data
        if not is_good:
            raise KubernetesError(f"Kubernetes refuses: {_said(data)}", code=answer.status)
        return answer


@contextmanager
def _told() -> Iterator[None]:
    """Whatever goes wrong on the way is an OutsideError."""
    try:
        yield
    except client.ApiException as error:
        raise KubernetesError(f"Kubernetes refuses: {error.reason}.", code=error.status or 0) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise NoAnswer(f"Kubernetes does not answer: {type(error).__name__}.") from error
    except ValueError as error:
        raise OutsideError(f"Kubernetes cannot be given this: {error}"[:500], permanent=True) from error


def _said(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return "it does not say why."
