"""`--keys` and `perdure keys` in real processes."""

import json
import stat

import pytest

from tests.cli.conftest import FLOWS

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def keyed(cli):
    """Return a command line in a folder with a file of one key."""
    made = cli("keys", "new", "--file", "keys", "--json")
    assert made.code == 0, made.err
    cli.first = made.json["key"]["id"]
    return cli


def test_a_new_key_is_in_a_file_that_only_its_owner_reaches(keyed):
    path = keyed.folder / "keys"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    done = keyed("keys", "new", "--file", "keys")
    assert done.code == 0
    lines = path.read_text().splitlines()
    assert lines[0].partition(":")[0] == keyed.first
    assert len(lines) == 2
    assert all(line.partition(":")[2] not in done.out + done.err for line in lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (keyed.folder / "keys.new").exists()


def test_a_file_of_something_else_is_left_alone(cli):
    path = cli.folder / "notes"
    path.write_text("not keys\n")
    path.chmod(0o600)
    done = cli("keys", "new", "--file", "notes")
    assert (done.code, path.read_text()) == (2, "not keys\n")
    path.chmod(0o644)
    assert "chmod 600" in cli("keys", "new", "--file", "notes").err


def test_every_command_needs_the_keys_of_an_encrypted_store(keyed):
    given = json.dumps({"order_id": "o-1"})
    done = keyed("run", f"{FLOWS}:refunds", "--input", given, "--keys", "file:keys")
    assert done.code == 13
    assert "--keys file:keys" in done.out  # the commands that go on find the same store
    for words in (["ps"], ["approve"], ["doctor"], ["schedule", "list"], ["show", "r_x"]):
        refused = keyed(*words)
        assert (refused.code, refused.out) == (39, "")
        assert "PD609" in refused.err
        assert "--keys env:NAME" in refused.err
    listed = keyed("approve", "--json", PERDURE_KEYS_FROM="file:keys").json
    [ask] = listed["asks"]
    answer = json.dumps({"granted": True, "limit": 1})
    done = keyed("approve", ask["id"], "--value", answer, "--by", "ada", "--keys", "file:keys")
    assert done.code == 0, done.err
    worker = keyed.worker("refunds", "--keys=file:keys")
    for _ in range(200):
        shown = keyed("show", ask["run"], "--json", "--keys", "file:keys").json
        if shown["run"]["status"] == "succeeded":
            break
    assert shown["run"]["status"] == "succeeded"
    worker.terminate()
    worker.communicate(timeout=20)
    assert b"o-1" not in (keyed.folder / "perdure.db").read_bytes()


def test_a_plain_store_is_refused_with_keys(keyed):
    assert keyed("run", f"{FLOWS}:hello", "--input", '"ada"').code == 0
    refused = keyed("ps", "--keys", "file:keys")
    assert refused.code == 42
    assert "PD610" in refused.err
    assert keyed("keys", "list").code == 42
    assert keyed("keys", "rotate", "--keys", "file:keys").code == 42
    assert keyed("ps").code == 0


def test_rotation(keyed):
    run = keyed("run", f"{FLOWS}:hello", "--input", '"ada"', "--keys", "file:keys", "--json").json
    run_id = run["run"]["id"]
    [only] = keyed("keys", "list", "--json").json["keys"]
    assert (only["id"], only["data_keys"], only["is_current"]) == (keyed.first, 3, None)
    second = keyed("keys", "new", "--file", "keys", "--json").json["key"]["id"]
    listed = keyed("keys", "list", "--keys", "file:keys")
    assert "perdure keys rotate" in listed.err
    assert keyed("keys", "rotate").code == 2
    done = keyed("keys", "rotate", "--keys", "file:keys", "--json").json["rotation"]
    assert done == {"key": second, "wrapped": 3, "kept": 0}
    path = keyed.folder / "keys"
    first, last = path.read_text().splitlines()
    path.write_text(f"{last}\n")
    shown = keyed("show", run_id, "--json", "--keys", "file:keys").json
    assert shown["run"]["status"] == "succeeded"
    path.write_text(f"{first}\n")
    refused = keyed("show", run_id, "--keys", "file:keys")
    assert refused.code == 43
    assert f"'{second}' is needed" in refused.err
    assert first.partition(":")[2] not in refused.err


def test_a_store_with_data_is_encrypted_in_place(keyed):
    run = keyed("run", f"{FLOWS}:hello", "--input", '"ada-lovelace"', "--json").json
    run_id = run["run"]["id"]
    assert keyed("keys", "seal").code == 2
    refused = keyed("ps", "--keys", "file:keys")
    assert "perdure keys seal --keys file:keys" in refused.err
    counted = keyed("keys", "seal", "--dry-run", "--json", "--keys", "file:keys").json["sealing"]
    assert counted["is_dry_run"]
    assert keyed("show", run_id).code == 0
    done = keyed("keys", "seal", "--json", "--keys", "file:keys").json["sealing"]
    assert (done["kinds"], done["rows"]) == (counted["kinds"], counted["rows"])
    assert done["rows"] >= 2
    assert (done["is_dry_run"], done["files_written"], done["remains"]) == (False, True, [])
    assert keyed("show", run_id).code == 39
    shown = keyed("show", run_id, "--json", "--keys", "file:keys").json
    assert shown["run"]["status"] == "succeeded"
    assert b"ada-lovelace" not in (keyed.folder / "perdure.db").read_bytes()
    again = keyed("keys", "seal", "--keys", "file:keys")
    assert (again.code, "encrypted already" in again.out) == (0, True)


def test_it_is_not_encrypted_while_a_worker_works(keyed):
    worker = keyed.worker("hello")
    run = keyed("run", f"{FLOWS}:hello", "--input", '"ada"')
    assert run.code == 0
    refused = keyed("keys", "seal", "--keys", "file:keys")
    assert refused.code not in {0, 1}
    assert "workers are alive" in refused.err
    worker.terminate()
    worker.communicate(timeout=20)
    assert keyed("keys", "seal", "--keys", "file:keys").code == 0
