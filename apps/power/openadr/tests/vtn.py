"""A small VTN that really speaks HTTP, on a port of this machine: OpenADR 3.0.1 or 3.1.0, and ways to misbehave."""

import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

CLIENT_ID, SECRET = "hall-1", "s3cr3t/of the+hall"
_AT = "2026-06-01T00:00:00Z"


class FakeVtn:
    """Objects are plain dicts in the lists below; tests put them there.

    Attributes:
        misbehave: By path, called with the handler before anything else; true: it has answered.
        page: The most items in one page, whatever is asked.
        asked: (method, path, query) of every request.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.programs: list[Any] = []
        self.events: list[Any] = []
        self.vens: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.n_granted = 0
        self.token_lasts_s = 3600
        self.page = 50
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.misbehave: dict[str, Callable[[_Handler], bool]] = {}
        self.after_page: Callable[[], None] = lambda: None
        self._n_ids = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.vtn = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/openadr3/{self.version}"

    @property
    def is_3_1(self) -> bool:
        return self.version.startswith("3.1")

    def __enter__(self) -> "FakeVtn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def made(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        self._n_ids += 1
        name = f"{kind.lower()}-{self._n_ids}"
        return {**body, "id": name, "createdDateTime": _AT, "modificationDateTime": _AT, "objectType": kind}

    def n_asked(self, method: str, path: str) -> int:
        return sum(1 for how, where, _ in self.asked if (how, where) == (method, path))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

    @property
    def vtn(self) -> FakeVtn:
        return self.server.vtn

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def say(self, status: int, body: object, *, headers: dict[str, str] | None = None) -> bool:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
        return True

    def problem(self, status: int, title: str) -> bool:
        return self.say(status, {"type": "about:blank", "title": title, "status": status})

    def _answer(self, method: str) -> None:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(f"/openadr3/{self.vtn.version}")
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.vtn.asked.append((method, path, query))
        try:
            if (trouble := self.vtn.misbehave.get(path)) and trouble(self):
                return
            self._route(method, path, query, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client had enough

    def _route(self, method: str, path: str, query: dict[str, str], body: bytes) -> None:
        vtn = self.vtn
        if (method, path) == ("GET", "/auth/server") and vtn.is_3_1:
            self.say(200, {"tokenURL": f"{vtn.url}/auth/token"})
            return
        if (method, path) == ("POST", "/auth/token"):
            self._grant({name: values[-1] for name, values in parse_qs(body.decode()).items()})
            return
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in vtn.tokens:
            self.problem(401, "Token is not valid")
            return
        sent = json.loads(body) if body else {}
        match method, path.strip("/").split("/"):
            case "GET", ["programs"]:
                self._page(vtn.programs, query)
            case "GET", ["events"]:
                if "active" in query and not vtn.is_3_1:
                    self.problem(400, "Unknown parameter: active")
                    return
                program = query.get("programID")
                self._page([e for e in vtn.events if not program or _get(e, "programID") == program], query)
            case "GET", ["vens"]:
                self._page(_named(vtn.vens, "venName", query), query)
            case "POST", ["vens"]:
                self._make("VEN", vtn.vens, sent, "venName", {"objectType": "VEN_VEN_REQUEST"})
            case how, ["vens", ven_id, "resources"] if not vtn.is_3_1:
                mine = [r for r in vtn.resources if r["venID"] == ven_id]
                if how == "GET":
                    self._page(_named(mine, "resourceName", query), query)
                else:
                    self._make("RESOURCE", vtn.resources, {**sent, "venID": ven_id}, "resourceName", {})
            case "GET", ["resources"] if vtn.is_3_1:
                mine = [r for r in vtn.resources if r["venID"] == query.get("venID", r["venID"])]
                self._page(_named(mine, "resourceName", query), query)
            case "POST", ["resources"] if vtn.is_3_1:
                need = {"objectType": "VEN_RESOURCE_REQUEST", "venID": vtn.vens[0]["id"] if vtn.vens else "?"}
                self._make("RESOURCE", vtn.resources, sent, "resourceName", need)
            case "GET", ["reports"]:
                keys = ("eventID", "clientName")
                self._page([r for r in vtn.reports if all(r[k] == query.get(k, r[k]) for k in keys)], query)
            case "POST", ["reports"]:
                if fault := self._report_fault(sent):
                    self.problem(400, fault)
                elif any(r.get("reportName") == sent.get("reportName") for r in vtn.reports):
                    self.problem(409, "There is such a report")
                else:
                    vtn.reports.append(vtn.made("REPORT", sent))
                    self.say(201, vtn.reports[-1])
            case "PUT", ["reports", report_id]:
                for there in vtn.reports:
                    if there["id"] == report_id:
                        there.update(sent)
                        self.say(200, there)
                        return
                self.problem(404, "No such report")
            case _:
                self.problem(404, "Not Found")

    def _grant(self, form: dict[str, str]) -> None:
        vtn = self.vtn
        if form.get("grant_type") != "client_credentials":
            self.say(400, {"error": "unsupported_grant_type"})
            return
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, SECRET):
            self.say(401, {"error": "invalid_client", "error_description": f"{form} is wrong"})
            return
        vtn.n_granted += 1
        token = f"token-{vtn.n_granted}"
        vtn.tokens.add(token)
        self.say(200, {"access_token": token, "token_type": "Bearer", "expires_in": vtn.token_lasts_s})

    def _page(self, items: list[Any], query: dict[str, str]) -> None:
        if not re.fullmatch(r"\d+", query.get("skip", "0")) or not 0 <= int(query.get("limit", "50")) <= 50:
            self.problem(400, "skip or limit is out of bounds")
            return
        skip = int(query.get("skip", "0"))
        self.say(200, items[skip : skip + min(int(query.get("limit", "50")), self.vtn.page)])
        self.vtn.after_page()

    def _make(
        self, kind: str, there: list[dict[str, Any]], sent: dict[str, Any], key: str, need: dict[str, str]
    ) -> None:
        wrong = [name for name, value in need.items() if self.vtn.is_3_1 and sent.get(name) != value]
        if wrong or not sent.get(key):
            self.problem(400, f"{', '.join(wrong) or key} is not what it should be")
        elif any(each[key] == sent[key] for each in there):
            self.problem(409, f"{sent[key]} is there already")
        else:
            there.append(self.vtn.made(kind, sent))
            self.say(201, there[-1])

    def _report_fault(self, sent: dict[str, Any]) -> str:
        need = {"eventID", "clientName", "resources"} | (set() if self.vtn.is_3_1 else {"programID"})
        allowed = need | {"reportName", "payloadDescriptors"}
        if missing := need - sent.keys():
            return f"{sorted(missing)} missing"
        if unknown := sent.keys() - allowed:
            return f"{sorted(unknown)} unknown"
        for resource in sent["resources"]:
            for interval in resource["intervals"]:
                if not isinstance(interval["id"], int) or not all(p["values"] for p in interval["payloads"]):
                    return "An interval is not as it should be"
        return ""


def _get(item: object, key: str) -> object:
    return item.get(key) if isinstance(item, dict) else None


def _named(items: list[dict[str, Any]], key: str, query: dict[str, str]) -> list[dict[str, Any]]:
    return [item for item in items if key not in query or item[key] == query[key]]


def trickle(handler: _Handler) -> bool:
    """A byte now and then, each in time, the whole never."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
    return True
