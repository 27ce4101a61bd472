"""The keys of every JSON shape: a difference is a reviewed decision, documented in docs/cli.md."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.beside import beside
from tests.cli.conftest import FLOWS, end
from tests.cli.test_sandbox import AGENT

SNAPSHOT = Path(__file__).with_name("shapes.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"

FREE = {
    "state",
    "result",
    "body",
    "fields",
    "schema_of_answer",
    "value",
    "args",
    "kwargs",
    "expected",
    "got",
}
"""What users put in: no keys of ours. (`schema` of an ask, too.)"""


ORDERS = {
    "limit set": ["--graph", "other", "--rate", "5", "--period", "60"],
    "limit list": [],
    "limit remove": ["--graph", "other"],
    "schedule add": ["s", f"{FLOWS}:hello", "--cron", "0 0 29 2 *", "--input", '"a"'],
    "schedule list": [],
    "schedule pause": ["s"],
    "schedule resume": ["s"],
    "schedule remove": ["s"],
    "quota set": ["--max-bytes", "1TB"],
    "quota list": [],
    "quota drop": [],
    "prune": ["--keep", "1000"],
    "untag": ["b", "release"],
}
"""Commands about runs to come, in the order in which they make sense."""


def travelled(cli):
    """Return what the commands of time travel say of a thread with a fork and a rollback."""
    target = f"{FLOWS}:bills"
    run_id = cli("run", target, "--thread", "b", "--json").json["run"]["id"]
    other = Path(cli.folder / "edited.py")
    other.write_text(FLOWS.read_text().replace("checked {", "CHECKED {"))
    cli("run", f"{FLOWS}:refunds", "--input", '{"order_id": "o"}', "--thread", "r", "--json")
    found = {
        "fork": cli("fork", "b@1", "--thread", "f", "--yes", "--json").json,
        "fork (running)": cli("fork", "r@1", "--yes", "--json").json,
        "show --at": cli("show", run_id, "--at", "3", "--json").json,
        "replay": cli("replay", run_id, f"{other}:bills", "--json").json,
        "diff": cli("diff", "b@1", "b@3", "--json").json,
    }
    found["rollback"] = cli("rollback", "b@1", "--by", "a", "--yes", "--json").json
    found["history --cost"] = cli("history", "b", "--cost", "--json").json
    found["tag"] = cli("tag", "b", "1", "release", "--json").json
    found["history (tree)"] = cli("history", "b", "--json").json
    return found


def audits(cli):
    """Return what the commands of the audit say; of what is wrong, too."""
    cli("audit", "keygen", "-o", "k")
    export = cli("audit", "export", "--all", "-o", "x", "--key", "k", "--json").json
    db = beside(cli.folder / "perdure.db")
    db.execute("UPDATE perdure_frames SET at_us = at_us + 1 WHERE first_seq = 1")
    found = cli("audit", "verify", "--thread", "t", "--json").json
    db.execute("UPDATE perdure_frames SET at_us = at_us - 1 WHERE first_seq = 1")
    db.close()
    return {
        "audit keygen": cli("audit", "keygen", "-o", "k2", "--json").json,
        "audit export": export,
        "audit verify": found,
        "audit check": cli("audit", "check", "x", "--since", "x", "--json").json,
    }


def erased(cli):
    """Return what an erasure says before and after, and what a check of its receipt says."""
    target = f"{FLOWS}:charges"
    given = ["--input", '{"order_id": "e"}', "--thread", "e", "--subject", "ada"]
    cli("run", target, *given, "--json", CHARGE_S="0")
    cli("audit", "keygen", "-o", "k3")
    cli("audit", "export", "--thread", "e", "-o", "y", "--key", "k3")
    preview = cli("erase", "--subject", "ada", "--dry-run", "--json").json
    options = ["--by", "a", "--force", "--yes", "--receipt", "e.json", "--key", "k3"]
    return {
        "erase --dry-run": preview,
        "erase": cli("erase", "--subject", "ada", *options, "--json").json,
        "audit receipt": cli("audit", "receipt", "e.json", "--json").json,
    }


def files_of(cli):
    """Return what the commands about files of sandboxes say; {}: this host can make none."""
    if not cli("doctor", "--host", "--json").json["host"]["can_isolate"]:
        return {}
    (cli.folder / "boxed.py").write_text(AGENT)
    cli("run", "boxed.py:graph", "--thread", "boxed", "--sandbox", "boxes", "--json")
    named = ["--sandbox", "boxes"]
    found = {
        "sandbox list": cli("sandbox", "list", "boxes", "--json").json,
        "sandbox show": cli("sandbox", "show", "boxes", "boxed", "--json").json,
        "sandbox collect": cli("sandbox", "collect", "boxes", "--dry-run", "--json").json,
        "prune --sandbox": cli("prune", "boxed", "--keep", "1", *named, "--json").json,
    }
    given = ["--thread", "boxed", "--by", "a", "--yes", *named]
    found["erase --sandbox"] = cli("erase", *given, "--json").json
    return found


def exports_of(cli):
    """Return what the commands about exports say; {}: this host can make no sandboxes."""
    if not cli("doctor", "--host", "--json").json["host"]["can_isolate"]:
        return {}
    (cli.folder / "exporting.py").write_text(AGENT)
    cli("run", "exporting.py:graph", "--thread", "out", "--sandbox", "out", "--json")
    url, plain = (cli.folder / "exports").as_uri(), ("--plain", "--json")
    return {
        "sandbox export": cli("sandbox", "export", "out", "--to", url, *plain).json,
        "sandbox import": cli(
            "sandbox", "import", "in", "--from", url, "--thread", "out", *plain
        ).json,
        "sandbox verify": cli("sandbox", "verify", url, *plain).json,
    }


def shape(value, name=""):
    """Return the keys of JSON-like data; a list is its first item."""
    if name in FREE or (name == "schema" and not isinstance(value, int)):
        return "free"
    if isinstance(value, dict):
        return {key: shape(item, key) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0], name)] if value else []
    return "value"


@pytest.fixture
def shapes(cli):
    """Run every command with --json, over a store with something of everything."""
    charged = cli.run_id("charges", {"order_id": "o"})
    worker = cli.worker("charges", CHARGE_S="300")
    cli.charged()
    end(worker, signal.SIGKILL)
    other = cli.worker("charges")
    shown = cli.until(charged, "needs_decision")
    asking = cli("run", f"{FLOWS}:refunds", "--input", '{"order_id": "o"}', "--json").json
    failing = cli("run", f"{FLOWS}:burst", "--input", "null", "--json").json
    ask_id = asking["outlook"]["blockers"][0]["wait"]["subject"]
    asking_id = asking["run"]["id"]
    found = {
        "run (waits)": asking,
        "run (failed)": failing,
        "run (succeeded)": cli(
            "run", f"{FLOWS}:hello", "--input", '"a"', "--thread", "t", "--json"
        ).json,
        "start": cli("start", f"{FLOWS}:listen", "--input", '"go"', "--json").json,
        "ps": cli("ps", "--json").json,
        "ps --workers": cli("ps", "--workers", "--json").json,
        "show (ask)": cli("show", asking_id, "--json").json,
        "show (lost holder)": shown,
        "history": cli("history", "t", "--json").json,
        **travelled(cli),
        "approve (list)": cli("approve", "--json").json,
        "signal": cli("signal", asking_id, "topic", "--json").json,
        "doctor": cli("doctor", "--json").json,
        "error": cli("show", "r_x", "--json").json,
        "migrate": cli("migrate", f"{FLOWS}:refunds", "--dry-run", "--threads", "--json").json,
        "worker --versions": cli("worker", f"{FLOWS}:hello", "--versions", "--json").json,
    }
    for name, arguments in ORDERS.items():
        found[name] = cli(*name.split(), *arguments, "--json").json
    found |= audits(cli)
    found |= erased(cli)
    found |= files_of(cli)
    found |= exports_of(cli)
    answer = ["--value", '{"granted": true, "limit": 1}', "--by", "ada", "--json"]
    found["approve"] = cli("approve", ask_id, *answer).json
    end(other)
    found["resolve"] = cli(
        "resolve", shown["uncertain"][0], "--not-happened", "--by", "a", "--json"
    ).json
    found["cancel"] = cli("cancel", charged, "--json").json
    cli("keys", "new", "--file", "keys")
    sealing = ["keys", "seal", "--dry-run", "--keys", "file:keys", "--json"]
    found["keys seal"] = cli(*sealing).json
    return {name: shape(value) for name, value in found.items()}


@pytest.mark.timeout(300)
def test_shapes_are_those_of_the_snapshot(shapes):
    if os.environ.get("WRITE_SHAPES"):  # after a reviewed change
        SNAPSHOT.write_text(json.dumps(shapes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    expected = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    if "sandbox list" not in shapes:  # this host can make no sandboxes
        expected = {name: each for name, each in expected.items() if "sandbox" not in name}
    assert expected == shapes


def keys(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)
    if isinstance(value, list):
        for item in value:
            yield from keys(item)


def test_every_key_is_documented():
    page = PAGE.read_text(encoding="utf-8")
    snapshot = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    named = {key for body in snapshot.values() for key in keys(body)}
    assert sorted(key for key in named if f"`{key}`" not in page) == []
