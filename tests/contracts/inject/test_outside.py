"""The outside world of a trial: what is counted, what is held, what the model says."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.contracts.inject import outside
from perdure.contracts.inject.outside import OutsideServer
from tests.contracts.inject.serving import serving

WAIT_S = 15


@pytest.fixture
def server() -> Iterator[OutsideServer]:
    with serving(OutsideServer()) as made:
        yield made


def ask(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(*server.server_address, timeout=WAIT_S)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


def effect(server, operation, key=None):
    headers = {"Idempotency-Key": key} if key else {}
    return ask(server, "POST", "/effects", {"operation": operation}, headers)


def said(answers=0):
    user = {"role": "user", "content": "go"}
    return [user, *[{"role": "assistant", "content": "."} for _ in range(answers)]]


def complete(server, answers=0, **more):
    body = {"model": "scripted", "messages": said(answers), **more}
    return ask(server, "POST", "/v1/chat/completions", body)


def test_an_effect_is_applied_once_for_each_key_and_each_time_without_one(server):
    first = effect(server, "refund", "k1")[1]
    again = effect(server, "refund", "k1")[1]
    assert again["result"] == first["result"]
    assert (first["repeated"], again["repeated"]) == (False, True)
    effect(server, "letter")
    effect(server, "letter")
    _, counted, _ = ask(server, "GET", "/effects")
    assert counted["operations"] == {
        "refund": {"requests": 2, "applied": 1, "keys": ["k1"]},
        "letter": {"requests": 2, "applied": 2, "keys": []},
    }


def test_one_operation_can_be_looked_up(server):
    effect(server, "a b:3")
    assert ask(server, "GET", "/effects/a%20b%3A3")[:2] == (
        200,
        {"requests": 1, "applied": 1, "keys": []},
    )
    assert ask(server, "GET", "/effects/never")[:2] == (404, {"applied": 0})


@pytest.mark.parametrize(("when", "applied"), [("before", 0), ("after", 1)])
def test_a_held_effect_waits_before_or_after_it_is_applied(server, when, applied):
    ask(server, "POST", "/control/hold", {"point": "effect/refund", "when": when})
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(effect, server, "refund")
        _, arrived, _ = ask(
            server, "GET", f"/control/arrived?point=effect/refund&count=1&timeout_s={WAIT_S}"
        )
        assert arrived == {"arrived": 1}
        assert not held.done()
        known = server.world.effects().get("refund", {"applied": 0})
        assert known["applied"] == applied
        ask(server, "POST", "/control/release", {"point": "effect/refund"})
        assert held.result(WAIT_S)[0] == 200
    assert server.world.effects()["refund"]["applied"] == 1


def test_a_request_that_is_held_counts_although_its_sender_was_killed(server):
    server.world.hold("effect/*", "after")
    sender = socket.create_connection(server.server_address)
    body = b'{"operation": "refund"}'
    sender.sendall(b"POST /effects HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert server.world.arrived("effect/refund", 1, WAIT_S) == 1
    sender.close()
    server.world.release("*")
    assert effect(server, "refund")[0] == 200
    assert server.world.effects()["refund"] == {"requests": 2, "applied": 2, "keys": []}


def test_a_step_is_told_by_the_conversation_so_a_repeated_question_gets_the_same_answer(server):
    steps = [{"call": {"name": "look", "arguments": {"at": "x"}}}, {"say": "it is x"}]
    ask(server, "POST", "/control/script", {"model": "scripted", "steps": steps})
    first = complete(server)[1]["choices"][0]
    assert first == complete(server)[1]["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    call = first["message"]["tool_calls"][0]
    assert (call["id"], call["function"]) == (
        "call-1-0",
        {"name": "look", "arguments": '{"at": "x"}'},
    )
    assert complete(server, 1)[1]["choices"][0]["message"]["content"] == "it is x"
    assert complete(server, 2)[1]["choices"][0]["message"]["content"] == "done"


def test_a_scripted_failure_has_its_status_and_says_when_to_come_back(server):
    ask(
        server,
        "POST",
        "/control/script",
        {"model": "*", "steps": [{"fail": 429, "retry_after": 7}]},
    )
    status, _, headers = complete(server)
    assert (status, headers["Retry-After"]) == (429, "7")


def test_a_stream_is_held_behind_its_first_piece(server):
    steps = [{"say": "one two three"}]
    ask(server, "POST", "/control/script", {"model": "scripted", "steps": steps})
    server.world.hold("model/alice/1", "after")
    connection = http.client.HTTPConnection(*server.server_address, timeout=WAIT_S)
    body = {"model": "scripted", "messages": said(), "stream": True, "user": "alice"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    assert b'"content": "one"' in response.readline()
    assert server.world.arrived("model/alice/1", 1, WAIT_S) == 1
    server.world.release("model/alice/1")
    rest = response.read().decode()
    connection.close()
    assert re.findall(r'"content": "( \w+)"', rest) == [" two", " three"]
    assert rest.rstrip().endswith("data: [DONE]")
    assert '"finish_reason": "stop"' in rest


def test_arrivals_of_one_conversation_are_told_from_those_of_others(server):
    complete(server, user="alice")
    complete(server, user="bob")
    world = server.world
    assert [world.arrived(f"model/{who}1", 1, 0) for who in ("", "alice/", "carol/")] == [2, 1, 0]
    assert [each["points"][-1] for each in world.record()] == ["model/alice/1", "model/bob/1"]


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("POST", "/nothing", "{}", 404),
        ("POST", "/effects", "[" * 100_000, 400),
        ("POST", "/effects", "[]", 400),
        ("POST", "/effects", "{}", 400),
        ("POST", "/effects", json.dumps({"operation": "x" * 1001}), 400),
        ("POST", "/effects", " " * (outside.BODY_BYTES_MAX + 1), 413),
        ("POST", "/control/hold", '{"point": "x", "when": "later"}', 400),
        ("POST", "/control/script", '{"model": "m", "steps": 3}', 400),
        ("POST", "/control/script", '{"model": "m", "steps": [3]}', 400),
        ("POST", "/v1/chat/completions", "{}", 400),
        ("GET", "/control/arrived?point=x&timeout_s=soon", None, 400),
    ],
)
def test_what_it_does_not_understand_it_refuses(server, method, path, content, status):
    connection = http.client.HTTPConnection(*server.server_address, timeout=WAIT_S)
    connection.request(method, path, content)
    assert connection.getresponse().status == status
    connection.close()
    assert ask(server, "GET", "/control/ready")[0] == 200


def test_more_requests_than_are_served_at_once_are_refused(server, monkeypatch):
    server.places = threading.BoundedSemaphore(1)
    server.world.hold("effect/*", "before")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(effect, server, "refund")
        assert server.world.arrived("effect/*", 1, WAIT_S) == 1
        assert ask(server, "GET", "/effects")[0] == 503
        server.world.release("*")
        assert held.result(WAIT_S)[0] == 200


def test_more_connections_than_are_kept_at_once_are_closed(server):
    server.connections = threading.BoundedSemaphore(1)
    with socket.create_connection(server.server_address, timeout=WAIT_S) as first:
        first.sendall(b"GET /control/ready HTTP/1.1\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection(server.server_address, timeout=WAIT_S) as second:
            assert second.recv(100) == b""


def test_the_file_alone_is_a_program(tmp_path):
    alone = tmp_path / "outside.py"
    alone.write_bytes(Path(outside.__file__).read_bytes())
    program = subprocess.Popen(
        [sys.executable, "-I", alone, "--port", "0"],
        stdout=subprocess.PIPE,
        env={name: of for name, of in os.environ.items() if name != "PYTHONPATH"},
    )
    try:
        port = json.loads(program.stdout.readline())["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "scripted"
        connection.close()
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
