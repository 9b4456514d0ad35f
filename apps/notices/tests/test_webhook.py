"""Where webhooks may lead, and where never: private addresses, by whatever name and however they are written."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from apps.core.errors import InvalidInput
from apps.notices import webhook
from apps.notices.webhook import WebhookFailed, post_text, require_good


class Sink:
    """A server that takes what is posted."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, bytes]] = []
        self.status, self.location, self.n_asked = 200, "", 0
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sink.n_asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.got.append((self.path, self.headers["Host"], body))
                self.send_response(sink.status)
                if sink.location:
                    self.send_header("Location", sink.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.server.shutdown()
    made.server.server_close()


def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/x",
        "ftp://hooks.example/x",
        "javascript:alert(1)",
        "https://",
        "https:///x",
        "https://user:secret@hooks.example/x",
        "https://hooks.example:0/x",
        "https://hooks.example:99999/x",
        "https://hooks.example/a b",
        "https://hooks.example/\r\nHost: other",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://10.0.0.7/x",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:192.168.1.1]/x",
        "https://[64:ff9b::a00:7]/x",
        "https://[2002:a00:7::]/x",
        "https://[fe80::1%25eth0]/x",
        "https://0.0.0.0/x",
        "https://224.0.0.1/x",
        "https://" + "a" * 2000,
    ],
)
def test_what_is_no_public_address_is_refused_when_it_is_typed(url: str):
    with pytest.raises(InvalidInput) as refusal:
        require_good(url)

    assert "secret" not in str(refusal.value)


def test_a_public_address_is_good():
    assert require_good("https://hooks.slack.com/services/T0/B0/xyz") == "hooks.slack.com"
    assert require_good("https://[2606:4700::1111]:8443/x") == "2606:4700::1111"


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "10.1.2.3"],
        ["::1"],
        ["fd00::1"],
        ["::ffff:127.0.0.1"],
        ["100.64.0.1"],
    ],
)
def test_a_name_that_leads_to_a_private_address_is_not_spoken_to(sink: Sink, answers: list[str]):
    with pytest.raises(WebhookFailed) as failure:
        post_text(f"https://hooks.example:{sink.port}/x", "hello", resolve=lambda host, port: answers)

    assert failure.value.permanent
    assert sink.n_asked == 0


def test_forms_of_an_address_that_only_the_system_reads_are_looked_up_and_refused():
    for host in ("2130706433", "0x7f.1", "127.1", "localhost"):
        with pytest.raises((WebhookFailed, InvalidInput)):
            post_text(f"https://{host}:9/x", "hello")


def test_what_whoever_runs_the_site_allows_is_posted_to_with_its_own_name(sink: Sink, settings):
    settings.SWITCHYARD_WEBHOOK_ALLOWED = ["chat.internal"]
    post_text(f"http://chat.internal:{sink.port}/hooks/secret?a=1", "hello", resolve=here)

    assert sink.got == [("/hooks/secret?a=1", f"chat.internal:{sink.port}", b'{"text": "hello"}')]


def test_a_network_can_be_allowed_and_then_no_other_is(sink: Sink, settings):
    settings.SWITCHYARD_WEBHOOK_ALLOWED = ["127.0.0.0/8"]
    post_text(f"http://127.0.0.1:{sink.port}/x", "hello")
    with pytest.raises(WebhookFailed):
        post_text("https://10.0.0.1/x", "hello")

    assert sink.n_asked == 1


def test_a_name_is_looked_up_once_and_the_connection_goes_to_that_answer(sink: Sink, settings, monkeypatch):
    settings.SWITCHYARD_WEBHOOK_ALLOWED = ["127.0.0.0/8"]
    asked: list[str] = []

    def by_turns(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    with pytest.raises(WebhookFailed):
        post_text(f"https://turncoat.example:{sink.port}/x", "hello", resolve=by_turns)  # no TLS there

    assert asked == ["turncoat.example"]


def test_no_redirect_is_followed(sink: Sink, settings):
    settings.SWITCHYARD_WEBHOOK_ALLOWED = ["127.0.0.0/8"]
    sink.status, sink.location = 302, f"http://127.0.0.1:{sink.port}/elsewhere"
    with pytest.raises(WebhookFailed) as failure:
        post_text(f"http://127.0.0.1:{sink.port}/x", "hello")

    assert failure.value.permanent
    assert [path for path, _, _ in sink.got] == ["/x"]


@pytest.mark.parametrize(("status", "permanent"), [(404, True), (410, True), (429, False), (500, False)])
def test_an_error_says_whether_it_is_worth_another_try_and_never_the_address(
    sink: Sink, settings, status: int, permanent: bool
):
    settings.SWITCHYARD_WEBHOOK_ALLOWED = ["127.0.0.0/8"]
    sink.status = status
    with pytest.raises(WebhookFailed) as failure:
        post_text(f"http://127.0.0.1:{sink.port}/hooks/secret", "hello")

    assert failure.value.permanent is permanent
    assert str(status) in failure.value.message
    assert "secret" not in failure.value.message


def test_a_server_that_answers_drop_by_drop_is_given_up(settings, monkeypatch):
    settings.SWITCHYARD_WEBHOOK_ALLOWED = ["127.0.0.0/8"]
    monkeypatch.setattr(webhook, "_TIMEOUT_S", 0.6)
    server, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\nX-Drop: ")
            while not stop.wait(0.05):
                try:
                    peer.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        with pytest.raises(WebhookFailed) as failure:
            post_text(f"http://127.0.0.1:{server.getsockname()[1]}/x", "hello")
    finally:
        stop.set()
        thread.join()
        server.close()

    assert "in time" in failure.value.message
