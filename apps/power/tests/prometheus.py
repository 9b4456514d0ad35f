"""A small Prometheus that really speaks HTTP, on a port of this machine: instant queries, and ways to misbehave."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


class FakePrometheus:
    """Knows the vectors of a few queries.

    Attributes:
        vectors: By query, its series: (labels, value as text, instant at which it was taken or None: now).
        misbehave: Called with the handler before anything else; true: it has answered.
        asked: Every query, in order.
    """

    def __init__(self) -> None:
        self.vectors: dict[str, list[tuple[dict[str, str], str, float | None]]] = {}
        self.misbehave: Callable[[_Handler], bool] = lambda handler: False
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.prometheus = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakePrometheus":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        owner: FakePrometheus = self.server.prometheus
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        query, at_s = form["query"][0], float(form["time"][0])
        owner.asked.append(query)
        if owner.misbehave(self):
            return
        if self.path != "/api/v1/query":
            self.answer(404, "404 page not found", plain=True)
            return
        of_instants = query.startswith("timestamp(") and query.endswith(")")
        found = owner.vectors.get(query[10:-1] if of_instants else query)
        if found is None:
            error = '1:1: parse error: unexpected character: "\u201c"'
            self.answer(400, {"status": "error", "errorType": "bad_data", "error": error})
            return
        series = []
        for labels, value, taken_s in found:
            metric = {"__name__": "DCGM_FI_DEV_POWER_USAGE", **labels}
            if of_instants:  # functions drop the name of the metric
                del metric["__name__"]
                value = str(at_s if taken_s is None else taken_s)
            series.append({"metric": metric, "value": [at_s, value]})
        self.answer(200, {"status": "success", "data": {"resultType": "vector", "result": series}})

    def answer(
        self, status: int, body: Any, *, plain: bool = False, headers: dict[str, str] | None = None
    ) -> None:
        data = body.encode() if plain else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
