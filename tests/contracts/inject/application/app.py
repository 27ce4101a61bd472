"""A small application to break: runs of steps on threads, kept well or badly as it is told.

It speaks the HTTP protocol of docs/injection.md. Settings by environment: STATE (a file; empty:
memory), RESUMES, KEYED, EFFECTS_URL, DRAINS, IGNORES, PORT, LEASE (a file) and LEASE_S, EXITS, HOOK
(a file without which it does not take the signal), DATABASE (a socket of database.py, asked before
each step over one connection) and RECONNECTS.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STATE = os.environ.get("STATE", "")
PORT = int(os.environ.get("PORT") or "8000")
LOCK = threading.RLock()
STOPPED = threading.Event()
UNDER_WAY = set()


def log(event):
    sys.stdout.write(json.dumps({"event": event}) + "\n")
    sys.stdout.flush()


def load():
    if STATE and Path(STATE).exists():
        return json.loads(Path(STATE).read_text())
    return {"threads": {}, "runs": {}, "memory": {}}


DATA = load()


def save():
    if STATE:
        path = Path(STATE)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".new").open("w") as file:
            json.dump(DATA, file)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").replace(path)


def effect(operation):
    url = os.environ.get("EFFECTS_URL")
    if not url:
        return
    headers = {"Content-Type": "application/json"}
    if os.environ.get("KEYED"):
        headers["Idempotency-Key"] = operation
    body = json.dumps({"operation": operation}).encode()
    asked = urllib.request.Request(f"{url}/effects", data=body, headers=headers)  # noqa: S310  # the stub
    urllib.request.urlopen(asked, timeout=60).read()  # noqa: S310


CONNECTION = []


def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["DATABASE"])
    CONNECTION[:] = [connection]


def is_asked():
    """Ask the database, over a new connection if the old one is gone and that may be."""
    if "DATABASE" not in os.environ:
        return True
    for _ in range(2):
        try:
            CONNECTION[0].sendall(b"?")
            if CONNECTION[0].recv(1):
                return True
            if not os.environ.get("RECONNECTS"):
                return False
            connect()
        except OSError:
            if not os.environ.get("RECONNECTS"):
                return False
            with contextlib.suppress(OSError):
                connect()
    return False


def execute(run_id):
    run = DATA["runs"][run_id]
    thread = DATA["threads"][run["thread"]]
    held = bytearray(run["payload_bytes"])
    for at in range(0, len(held), 4096):
        held[at] = 1
    UNDER_WAY.add(run_id)
    while run["steps_done"] < run["steps"]:
        step = run["steps_done"] + 1
        if run["asks"] and step == run["steps"]:
            with LOCK:
                run["state"] = "interrupted"
                thread["interrupts"] = [{"id": f"i-{run_id}", "value": "go on?"}]
                save()
            UNDER_WAY.discard(run_id)
            return
        if not is_asked():
            run["state"] = "failed"
            UNDER_WAY.discard(run_id)
            return
        effect(f"{run['operation']}:{step}")
        time.sleep(run["step_s"])
        with LOCK:
            run["steps_done"] = step
            thread["steps"] += 1
            thread["checkpoint"] = f"c-{thread['steps']}"
            thread["done"].append(f"{run_id}:{step}")
            save()
    with LOCK:
        run["state"] = "succeeded"
        save()
    UNDER_WAY.discard(run_id)


def begin(run_id):
    threading.Thread(target=execute, args=(run_id,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, status, body=None):
        content = json.dumps(body or {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts == ["ready"]:
            self.send(503 if STOPPED.is_set() else 200)
        elif parts[0] == "runs" and len(parts) == 3:
            self.events(parts[1])
        elif parts[0] == "runs" and parts[1] in DATA["runs"]:
            self.send(200, {"id": parts[1], **DATA["runs"][parts[1]]})
        elif parts[0] == "threads" and parts[1] in DATA["threads"]:
            thread = DATA["threads"][parts[1]]
            self.send(200, {"id": parts[1], **thread, "digest": "|".join(thread["done"])})
        elif parts[0] == "memory" and parts[1] in DATA["memory"]:
            self.send(200, {"value": DATA["memory"][parts[1]]})
        else:
            self.send(404)

    def do_PUT(self):
        with LOCK:
            DATA["memory"][self.path.rpartition("/")[2]] = self.body()["value"]
            save()
        self.send(200)

    def do_POST(self):
        parts, body = self.path.strip("/").split("/"), self.body()
        if parts[0] == "runs":
            self.send(202, self.started(body))
        elif parts[0] == "resources":
            self.send(200, {"held": lease()})
        else:
            thread = DATA["threads"][parts[1]]
            run_id = thread["run"]
            with LOCK:
                DATA["runs"][run_id].update(state="running", asks=False)
                thread["interrupts"] = []
                save()
            begin(run_id)
            self.send(200, {"id": run_id, **DATA["runs"][run_id]})

    def started(self, body):
        with LOCK:
            run_id = f"r-{len(DATA['runs']) + 1}"
            DATA["runs"][run_id] = {**body, "state": "running", "steps_done": 0}
            empty = {"checkpoint": "c-0", "steps": 0, "interrupts": [], "done": []}
            DATA["threads"].setdefault(body["thread"], empty)["run"] = run_id
            save()
        begin(run_id)
        return {"id": run_id, **DATA["runs"][run_id]}

    def events(self, run_id):
        run = DATA["runs"][run_id]
        after = int(self.headers.get("Last-Event-ID") or 0)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while True:
            while after < run["steps_done"]:
                after += 1
                self.wfile.write(f"id: {after}\nevent: step\ndata: {after}\n\n".encode())
            if run["state"] == "succeeded":
                self.wfile.write(f"id: {after + 1}\nevent: end\ndata: done\n\n".encode())
                return
            time.sleep(0.01)


def lease():
    path = Path(os.environ["LEASE"])
    length_s = float(os.environ.get("LEASE_S") or "1e9")
    with LOCK:
        if path.exists() and time.time() < float(path.read_text()):
            return False
        path.write_text(str(time.time() + length_s))
        return True


def main():
    server = ThreadingHTTPServer(("0.0.0.0", PORT), Handler)  # noqa: S104  # in its container

    def stop(*_):
        if not Path(os.environ.get("HOOK", ".")).exists():
            os._exit(0)
        STOPPED.set()
        log("stop_signal")
        threading.Thread(target=server.shutdown).start()

    handlers = {"": stop, "default": signal.SIG_DFL, "all": signal.SIG_IGN}
    signal.signal(signal.SIGTERM, handlers[os.environ.get("IGNORES", "")])
    if "DATABASE" in os.environ:
        connect()
    log("started")
    if os.environ.get("RESUMES"):
        for run_id, run in DATA["runs"].items():
            if run["state"] == "running":
                begin(run_id)
    server.serve_forever(poll_interval=0.01)
    while os.environ.get("DRAINS") and UNDER_WAY:
        time.sleep(0.01)
    log("drained")


main()
