"""Who is let in: by which name, from which page, with which token, how often, how slowly."""

import asyncio
import http.client
import json
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.conftest import PATIENCE_S, SMALL, Reply, Running, start, wait_until
from service.test_jobs import SCHEDULE
from traincast.__main__ import main
from traincast.errors import InvalidInput
from traincast.service._access import Denied, Rates, Tokens, is_allowed_host
from traincast.service._faults import StorageFault
from traincast.service._limits import Settings
from traincast.service._state import StoredToken, digest_token


def ask(service: Running, method: str, path: str, *, host: str, body: Any = None, **headers: str) -> Reply:
    """As urllib cannot: under any Host header."""
    connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=PATIENCE_S)
    content = None if body is None else json.dumps(body)
    sent = {"host": host, "content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    with closing(connection):
        connection.request(method, path, content, sent)
        reply = connection.getresponse()
        found = reply.read()
        shown = json.loads(found) if found[:1] in (b"{", b"[") else found.decode()
        return Reply(reply.status, shown, {key.lower(): value for key, value in reply.getheaders()})


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8400", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1"]
)
def test_a_name_that_is_not_ours_reaches_nothing(service: Running, host: str) -> None:
    for method, path in (("GET", "/jobs"), ("GET", "/"), ("GET", "/health"), ("POST", "/schedule")):
        body = SCHEDULE if method == "POST" else None
        reply = ask(service, method, path, host=host, body=body)
        assert reply.status == 403
        assert "--allow-host" in reply.error
    # The page of that name has an origin that is equal to its host, and still no way in.
    assert ask(service, "POST", "/schedule", host=host, body=SCHEDULE, origin=f"http://{host}").status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8400", "localhost."])
def test_the_names_of_the_loopback_are_ours(service: Running, host: str) -> None:
    assert ask(service, "GET", "/catalog", host=host).status == 200


def test_a_service_for_others_answers_to_addresses_and_to_the_names_it_was_given() -> None:
    settings = Settings(state="", host="0.0.0.0", allowed_hosts=("cast.example",))
    for host in ("cast.example:80", "Cast.Example", "10.1.2.3:8400", "[fe80::1]", "localhost"):
        assert is_allowed_host(host, settings)
    for host in ("other.example", "cast.example.evil.example", "", "10.1.2.3.nip.io"):
        assert not is_allowed_host(host, settings)
    with pytest.raises(InvalidInput, match="name the hosts"):
        Settings(state="", allowed_hosts=("*",))


def test_a_request_must_say_whom_it_asks(service: Running) -> None:
    where = urlsplit(service.url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=PATIENCE_S) as raw:
        raw.sendall(b"GET /jobs HTTP/1.0\r\n\r\n")
        assert b" 400 " in raw.recv(4000).split(b"\r\n")[0]


@pytest.mark.parametrize("headers", [{"origin": "null"}, {"origin": "http://localhost:1"}, {"sec_fetch_site": "cross-site"},
                                     {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors"}])  # fmt: skip
def test_pages_of_other_sites_reach_neither_answers_nor_changes(service: Running, headers: dict[str, str]) -> None:
    for method, path, body in (("GET", "/jobs", None), ("POST", "/schedule", SCHEDULE), ("DELETE", "/jobs/x", None)):
        assert service.ask(method, path, body, **headers).status == 403


def test_a_link_on_another_site_may_open_the_page_and_only_the_page(service: Running) -> None:
    visit = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert service.get("/", **visit).status == 200
    assert service.get("/jobs", **visit).status == 403


def test_reading_changes_nothing(service: Running) -> None:
    service.finish(service.post("/schedule", SCHEDULE).body["id"])
    wait_until(lambda: service.get("/ready").status == 200)
    before = service.get("/jobs").body
    paths = [path for path, methods in service.get("/openapi.json").body["paths"].items() if "get" in methods]
    assert len(paths) >= 9
    for path in ("/", *paths):
        path = path.replace("{kind}", "devices").replace("{name}", "h100").replace("{job}", before[0]["id"])
        got, head = service.get(path), service.ask("HEAD", path)
        assert got.status == head.status == 200
        assert head.headers["content-type"] == got.headers["content-type"]
    assert service.get("/jobs").body == before
    assert service.ask("HEAD", "/forecast").status == 405


def test_every_answer_carries_the_headers_that_keep_a_browser_in_bounds(service: Running) -> None:
    for reply in (
        service.get("/"),
        service.get("/jobs"),
        service.get("/nowhere"),
        service.post("/forecast", {}),
        service.get("/jobs", origin="null"),
    ):
        headers = {key.lower(): value for key, value in reply.headers.items()}
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert headers["cache-control"] == "no-store"


def test_another_address_than_the_loopback_needs_a_token(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--host", "0.0.0.0", "--port", "0", "--state", str(tmp_path / "s.db")]) == 2
    assert "anybody who reaches 0.0.0.0 could ask this service; set TRAINCAST_TOKEN" in capsys.readouterr().err


async def may_ask(tokens: Tokens, header: bytes) -> int:
    try:
        await tokens.identify(header)
    except Denied as denied:
        return denied.status
    return 200


HOSTS = {"127.0.0.1": True, "::1": True, "localhost": True, "127.0.0.2": False, "0.0.0.0": False, "10.1.2.3": False}


@pytest.mark.parametrize("host", list(HOSTS))
@pytest.mark.parametrize("store", ["readable", "away now", "never read"])
@pytest.mark.parametrize("kept", ["no token", "a token", "the last one removed"])
@pytest.mark.parametrize("fixed", [None, "the-fixed-token"])
def test_nobody_is_let_in_unless_it_is_known_that_they_may(host: str, store: str, kept: str, fixed: str | None) -> None:
    """Every address with every state of the store and of its tokens."""
    one = StoredToken(name="one", digest=digest_token("secret"), scope="run", created_s=0.0)
    answers: list[list[StoredToken] | StorageFault] = [[one] if kept != "no token" else []]
    if kept == "the last one removed":
        answers.append([])
    if store != "readable":
        answers.append(StorageFault("unreachable"))

    async def read() -> list[StoredToken]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, StorageFault):
            raise found
        return found

    async def run() -> dict[str, int]:
        tokens = Tokens(Settings(state="", host=host, token=fixed), read)
        if store == "never read":
            del answers[:-1]
        for _ in range(3):
            tokens._read_s = float("-inf")
            await tokens.refresh()
        callers = {"nobody": b"", "stored": b"Bearer secret", "fixed": b"Bearer the-fixed-token", "wrong": b"Bearer x"}
        return {name: await may_ask(tokens, header) for name, header in callers.items()}

    found = asyncio.run(run())
    is_open = HOSTS[host] and fixed is None and kept == "no token" and store != "never read"
    if is_open:
        assert set(found.values()) == {200}
        return
    closed = 401 if store == "readable" else 503
    stored = 200 if kept == "a token" and store == "readable" else closed
    assert found == {"nobody": closed, "wrong": closed, "stored": stored, "fixed": 200 if fixed else closed}


def test_the_last_token_removed_while_it_runs_opens_nothing(tmp_path: Path) -> None:
    secret = add_token(tmp_path, "only", "admin")
    running = start(tmp_path / "state.db", "--workers", "1", "--host", "127.0.0.2")
    try:
        bearer = {"authorization": f"Bearer {secret}"}
        assert running.get("/jobs", **bearer).status == 200
        assert main(["token", "remove", "only", "--state", str(tmp_path / "state.db")]) == 0
        wait_until(lambda: running.get("/jobs", **bearer).status == 401)
        for method, path, body in (("GET", "/jobs", None), ("POST", "/forecast", SMALL), ("GET", "/metrics", None)):
            assert running.ask(method, path, body).status == 401
        assert running.get("/live").status == 200
    finally:
        running.stop()


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "http://a\tb"])
def test_an_origin_that_is_no_address_is_refused_and_breaks_nothing(service: Running, origin: str) -> None:
    assert service.get("/jobs", origin=origin).status == 403


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, str], Path]]:
    """A service with a token of each scope, few requests a second, and an audit log."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = {}
    for scope in ("read", "run", "admin"):
        tokens[scope] = add_token(folder, scope, scope)
    options = ("--workers", "1", "--rate", "40", "--audit-log", str(folder / "audit.jsonl"))
    running = start(folder / "state.db", *options)
    yield running, tokens, folder
    running.stop()


def add_token(folder: Path, name: str, scope: str) -> str:
    import io
    from contextlib import redirect_stdout

    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["token", "add", name, "--scope", scope, "--state", str(folder / "state.db")]) == 0
    return out.getvalue().strip()


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("read", ("/jobs",)), ("run", ("/jobs", "/forecast")), ("admin", ("/jobs", "/forecast", "/metrics"))],
)
def test_a_token_does_what_its_scope_says(
    guarded: tuple[Running, dict[str, str], Path], scope: str, allowed: tuple[str, ...]
) -> None:
    running, tokens, _ = guarded
    bearer = {"authorization": f"Bearer {tokens[scope]}"}
    for path, method, body in (("/jobs", "GET", None), ("/forecast", "POST", SMALL), ("/metrics", "GET", None)):
        reply = running.ask(method, path, body, **bearer)
        assert reply.status == (200 if path in allowed else 403)
        assert running.ask(method, path, body).status == 401
    assert running.get("/jobs", authorization=f"Bearer {tokens[scope]}x").status == 401


def test_tokens_are_kept_as_digests_and_can_be_removed(
    guarded: tuple[Running, dict[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    running, tokens, folder = guarded
    secret = add_token(folder, "short-lived", "read")
    for file in folder.glob("state.db*"):
        assert not any(each.encode() in file.read_bytes() for each in (*tokens.values(), secret))
    with closing(sqlite3.connect(folder / "state.db")) as db:
        assert {len(row[0]) for row in db.execute("SELECT digest FROM tokens")} == {64}
    assert main(["token", "list", "--state", str(folder / "state.db")]) == 0
    assert "short-lived" in capsys.readouterr().out
    wait_until(lambda: running.get("/jobs", authorization=f"Bearer {secret}").status == 200)
    assert main(["token", "remove", "short-lived", "--state", str(folder / "state.db")]) == 0
    wait_until(lambda: running.get("/jobs", authorization=f"Bearer {secret}").status == 401)
    assert main(["token", "remove", "nobody", "--state", str(folder / "state.db")]) == 2
    assert main(["token", "add", "x", "--scope", "god", "--state", str(folder / "state.db")]) == 2


def test_a_client_that_asks_too_often_is_told_when_to_come_back(guarded: tuple[Running, dict[str, str], Path]) -> None:
    running, tokens, _ = guarded
    bearer = {"authorization": f"Bearer {tokens['read']}"}
    replies: list[Reply] = []

    def ask_often(pool: ThreadPoolExecutor) -> bool:
        replies.extend(pool.map(lambda _: running.get("/catalog", **bearer), range(100)))
        return any(reply.status == 429 for reply in replies)

    # A busy machine may need many at once to be faster than the rate.
    with ThreadPoolExecutor(16) as pool:
        wait_until(lambda: ask_often(pool))
    refused = [reply for reply in replies if reply.status == 429]
    assert {reply.status for reply in replies} == {200, 429}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    wait_until(lambda: running.get("/catalog", **bearer).status == 200)


def test_the_audit_log_names_who_changed_and_who_was_refused(guarded: tuple[Running, dict[str, str], Path]) -> None:
    running, tokens, folder = guarded
    job = running.post("/schedule", SCHEDULE, authorization=f"Bearer {tokens['run']}")
    assert job.status == 202
    running.get("/jobs", authorization="Bearer wrong")
    running.get("/jobs%0Aforged%20line", authorization="Bearer wrong")
    expected = {
        ("run", "POST", "/schedule", 202),
        ("127.0.0.1", "GET", "/jobs", 401),
        ("127.0.0.1", "GET", "/jobs\nforged line", 401),
    }

    def read_log() -> set[tuple[Any, ...]]:
        lines = (folder / "audit.jsonl").read_text().splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        return {(each["client"], each["method"], each["path"], each["status"]) for each in told}

    wait_until(lambda: expected <= read_log())
    assert not any(token in (folder / "audit.jsonl").read_text() for token in tokens.values())
    assert (folder / "audit.jsonl").stat().st_mode & 0o077 == 0


def test_rates_are_counted_for_each_client_apart() -> None:
    rates = Rates(5.0)
    assert [rates.wait_s("greedy") > 0 for _ in range(12)] == [False] * 10 + [True] * 2
    assert rates.wait_s("modest") == 0
    assert Rates(0.0).wait_s("anybody") == 0
