"""`perdure audit` as a user has it."""

import json
import re
import shlex
import stat
import sys
from pathlib import Path

import pytest

from perdure.governance import FINDING_CODES
from tests.beside import beside
from tests.cli.conftest import FLOWS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


@pytest.fixture
def told(cli):
    """A store with two runs on one thread."""
    for _ in range(2):
        done = cli("run", f"{FLOWS}:hello", "--input", '"a"', "--thread", "t")
        assert done.code == 0, done.err
    return cli


def tamper(cli, sql):
    db = beside(cli.folder / "perdure.db")
    db.execute(sql)
    db.close()


def test_a_sound_store(told, inside):
    done = inside("audit", "verify")
    assert done.code == 0
    assert re.search(
        r"^verified 1 thread, 2 runs, \d+ records, 0 effects, 0 asks: all is what was written$",
        done.out,
        re.MULTILINE,
    )
    assert done.err == ""
    body = inside("audit", "verify", "--thread", "t", "--json").json
    assert (body["is_sound"], body["checked"]["anchored"], body["findings"]) == (True, 1, [])


def test_damage_has_its_own_exit_code_and_says_where(told, inside):
    tamper(told, "UPDATE perdure_frames SET at_us = at_us + 1 WHERE first_seq = 2")
    done = inside("audit", "verify")
    assert done.code == 40
    assert "frame_changed" in done.out
    assert "records 1 to 1 are what was written" in done.out
    body = inside("audit", "verify", "--json").json
    assert body["is_sound"] is False
    [one, other] = body["findings"]
    assert one["run"] != other["run"]
    assert (one["thread"], one["first_seq"], one["trusted_seq"]) == ("t", 2, 1)


def test_what_can_not_be_verified_has_another_exit_code(told, inside):
    assert inside("audit", "verify", "--run", "r_x").code == 4
    assert inside("audit", "verify", "--thread", "nowhere").code == 4
    assert inside("audit", "verify", "--thread", "t", "--run", "r").code == 2
    assert inside("audit", "verify", "--store", "sqlite:///nothing.db").code == 30
    assert not (told.folder / "nothing.db").exists()


def test_signed_from_key_to_check(told, inside):
    made = inside("audit", "keygen", "-o", "audit.key")
    assert made.code == 0
    assert stat.S_IMODE((told.folder / "audit.key").stat().st_mode) == 0o600
    done = inside("audit", "export", "--all", "-o", "x.audit", "--key", "audit.key")
    assert (done.code, done.err) == (0, "")
    assert "signed by key" in done.out
    done = inside("audit", "check", "x.audit", "--public-key", "audit.key.pub")
    assert done.code == 0
    assert "proves: the file is as the owner of key" in done.out
    assert "does not prove: that the newest runs were not cut" in done.out
    done = inside("audit", "check", "x.audit")
    assert "name the key that you trust with --public-key" in done.out
    inside("audit", "keygen", "-o", "other.key")
    done = inside("audit", "check", "x.audit", "--public-key", "other.key.pub")
    assert done.code == 40
    assert "signature_wrong" in done.out
    assert "proves:" not in done.out.replace("does not prove:", "")


def test_unsigned_is_said_loudly(told, inside):
    done = inside("audit", "export", "--thread", "t", "-o", "x.audit")
    assert done.code == 0
    assert done.err.startswith("NOT SIGNED")
    assert "NOT SIGNED" in done.out
    assert "it is NOT SIGNED" in inside("audit", "check", "x.audit").out
    body = inside("audit", "export", "--all", "-o", "y.audit", "--json").json
    assert body["signed_by"] is None


def test_an_export_says_what_to_export_and_never_overwrites(told, inside):
    assert inside("audit", "export", "-o", "x").code == 2
    assert inside("audit", "export", "--all", "--thread", "t", "-o", "x").code == 2
    assert inside("audit", "export", "--all", "-o", "x").code == 0
    assert inside("audit", "export", "--all", "-o", "x").code == 2
    assert inside("audit", "export", "--run", "r_x", "-o", "y").code == 4
    assert not (told.folder / "y").exists()


def test_a_file_that_is_none(told, inside):
    (told.folder / "x").write_text("not an export")
    done = inside("audit", "check", "x")
    assert done.code == 41
    assert "error PD703" in done.err
    assert inside("audit", "check", "nothing").code == 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o660, 0o777])
def test_a_private_key_that_others_may_use_is_refused(told, inside, mode):
    inside("audit", "keygen", "-o", "k")
    (told.folder / "k").chmod(mode)
    done = inside("audit", "export", "--all", "-o", "x", "--key", "k")
    assert done.code == 2
    assert "chmod 600" in done.err
    assert not (told.folder / "x").exists()


def test_keys_that_are_none(told, inside):
    inside("audit", "keygen", "-o", "k")
    (told.folder / "noise").write_bytes(b"noise")
    (told.folder / "noise").chmod(0o600)
    (told.folder / "huge").write_bytes(b"x" * 100_000)
    (told.folder / "huge").chmod(0o600)
    for name in ("noise", "huge", "nothing", "k.pub", "."):
        if (told.folder / name).is_file():
            (told.folder / name).chmod(0o600)
        done = inside("audit", "export", "--all", "-o", "x", "--key", name)
        assert (done.code, done.err[:11]) == (2, "error PD107"), name
    inside("audit", "export", "--all", "-o", "x", "--key", "k")
    for name in ("noise", "huge", "nothing", "k"):
        done = inside("audit", "check", "x", "--public-key", name)
        assert (done.code, done.err[:11]) == (2, "error PD107"), name
    before = (told.folder / "k").read_bytes()
    assert inside("audit", "keygen", "-o", "k").code == 2
    assert inside("audit", "keygen", "-o", "no/k").code == 2
    assert (told.folder / "k").read_bytes() == before


def test_without_the_extra_it_says_how_to_get_it(told, inside, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    done = inside("audit", "keygen", "-o", "k")
    assert done.code == 2
    assert "perdure[encryption]" in done.err
    assert inside("audit", "export", "--all", "-o", "x").code == 0
    assert inside("audit", "check", "x").code == 0


def test_every_finding_is_documented():
    assert [code for code in FINDING_CODES if f"| `{code}` |" not in PAGE] == []


@pytest.mark.timeout(60)
def test_the_commands_of_the_page_run(cli):
    """As they stand there; `refunds.py:graph` is a flow that ends by itself."""
    [block] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.partition("  #")[0].split(" ", 1)[1].strip() for line in block.splitlines()]
    assert len(commands) == 8
    ours = f"{FLOWS}:hello --input '\"a\"'"
    for line in commands:
        done = cli(*shlex.split(re.sub(r"refunds\.py:graph --input '[^']*'", ours, line)))
        assert done.code == 0, (line, done.err)
    checked = cli(
        "audit", "check", "tuesday.audit", "--public-key", "audit.key.pub",
        "--since", "monday.audit", "--json",
    ).json  # fmt: skip
    assert checked["since"] == {"grown": 1, "uncovered": 0, "unseen": 0}
    assert json.dumps(checked)


@pytest.mark.timeout(60)
async def test_the_program_of_the_page_runs(told, monkeypatch):
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    told("audit", "keygen", "-o", "audit.key")
    monkeypatch.chdir(told.folder)
    names: dict = {"__name__": "page"}
    exec(compile(program, "audit.md", "exec"), names)  # noqa: S102  # our own document
    await names["nightly"]("sqlite:///perdure.db")
    assert (told.folder / "tonight.audit").exists()
