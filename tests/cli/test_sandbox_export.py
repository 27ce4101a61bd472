"""`perdure sandbox export|import|verify`, and workers that export, in real processes."""

import asyncio

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes
from tests.cli.test_sandbox import AGENT

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def boxes(cli, tmp_path):
    """Return the folder of sandboxes with three snapshots of a thread; keys are in `keys`."""
    backend = IsolatedSandboxes(tmp_path / "boxes")

    async def fill():
        sandbox = backend.open("default", "t")
        for n in range(3):
            await sandbox.run(f"echo {n} > f; head -c 300000 /dev/urandom > r{n}")
            cli.snapshot = await sandbox.take()

    try:
        asyncio.run(fill())
    except UsageError as error:
        pytest.skip(f"NOT TESTED: isolated sandboxes can't be made on this host: {error}")
    finally:
        backend.close()
    assert cli("keys", "new", "--file", "keys").code == 0
    cli.url = (tmp_path / "exports").as_uri()
    return str(tmp_path / "boxes")


def test_export_verify_and_import(cli, boxes, tmp_path):
    terms = ["--keys", "file:keys", "--json"]
    done = cli("sandbox", "export", boxes, "--to", cli.url, *terms).json["exported"]
    assert (len(done["snapshots"]), done["pieces"], done["new"]) == (3, 3, 3)
    again = cli("sandbox", "export", boxes, "--to", cli.url, *terms).json["exported"]
    assert (again["snapshots"], again["stored_bytes"]) == ([], 0)
    seen = cli("sandbox", "verify", cli.url, *terms)
    assert (seen.code, seen.json["is_sound"], len(seen.json["snapshots"])) == (0, True, 3)
    [thread] = {each["thread"] for each in seen.json["snapshots"]}
    assert thread.startswith("t.")
    other = str(tmp_path / "other")
    found = cli("sandbox", "import", other, "--from", cli.url, "--thread", "t", *terms).json
    assert found["imported"]["snapshot"] == cli.snapshot
    assert found["imported"]["bytes"] == 900_000
    once = cli("sandbox", "import", other, "--from", cli.url, "--thread", "t", *terms).json
    assert once["imported"]["pieces"] == 0


def test_what_is_missing_or_changed_is_named(cli, boxes, tmp_path):
    terms = ["--keys", "file:keys"]
    assert cli("sandbox", "export", boxes, "--to", cli.url, "--thread", "t", *terms).code == 0
    piece = next((tmp_path / "exports").glob("*/pieces/*/*"))
    whole = piece.read_bytes()
    for changed in (whole[:-1], None):
        if changed is None:
            piece.unlink()
        else:
            piece.write_bytes(changed)
        seen = cli("sandbox", "verify", cli.url, *terms)
        assert seen.code == 40
        assert piece.name in seen.out.replace("\n", "").replace(" ", "")
    piece.write_bytes(whole)
    manifest = next((tmp_path / "exports").glob("*/snapshots/*/*"))
    manifest.unlink()  # of the oldest, or of one that stands on it
    seen = cli("sandbox", "verify", cli.url, *terms, "--json")
    broken = [each for each in seen.json["snapshots"] if each["problem"]]
    assert len(broken) == (0 if cli.snapshot in str(manifest) else 1)


def test_an_older_state_of_the_exports_is_noticed(cli, boxes, tmp_path):
    """Without the newest snapshot a host that has seen it takes no older one for it."""
    terms = ["--keys", "file:keys"]
    assert cli("sandbox", "export", boxes, "--to", cli.url, "--thread", "t", *terms).code == 0
    words = ["sandbox", "import", boxes, "--from", cli.url, "--thread", "t", *terms]
    assert cli(*words).code == 0
    for path in (tmp_path / "exports").glob(f"*/snapshots/{cli.snapshot}/*"):
        path.unlink()
    done = cli(*words)
    assert (done.code, "PD507" in done.err, "newer" in done.err) == (12, True, True)


def test_terms_that_do_not_fit_are_refused(cli, boxes, tmp_path):
    export = ["sandbox", "export", boxes, "--to", cli.url]
    assert cli(*export).code == 2
    assert cli(*export, "--keys", "file:keys", "--plain").code == 2
    assert cli(*export, "--plain", "--snapshot", cli.snapshot).code == 2
    assert cli("sandbox", "export", boxes, "--to", "nowhere:/x", "--plain").code == 2
    assert cli("sandbox", "verify", cli.url).code == 2
    assert cli("sandbox", "import", boxes, "--from", cli.url, "--thread", "t", "--plain").code == 4
    assert not (tmp_path / "exports").exists()


def test_a_run_goes_on_in_another_folder(cli, boxes, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    words = ["run", f"{tmp_path / 'agent.py'}:graph", "--thread", "goes-on", "--json"]
    terms = ["--sandbox-export", cli.url, "--sandbox-keys", "file:keys", "--sandbox-durable"]
    for n, told in enumerate(("1\n", "1\n1\n")):
        done = cli(*words, "--sandbox", str(tmp_path / f"host-{n}"), *terms)
        assert done.json["result"]["told"] == f"sandbox\n/workspace\n{told}", done.err
    done = cli(*words, "--sandbox-durable")
    assert (done.code, "--sandbox-export" in done.out + done.err) == (2, True)


def test_what_nobody_needs_goes_from_the_place(cli, boxes, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    exported = ["--sandbox-export", cli.url, "--sandbox-keys", "file:keys"]
    words = ["run", f"{tmp_path / 'agent.py'}:graph", "--thread", "mine", "--sandbox", boxes]
    assert cli(*words, *exported, "--sandbox-durable").code == 0
    assert cli("sandbox", "export", boxes, "--to", cli.url, "--keys", "file:keys").code == 0
    collect = ["sandbox", "collect", boxes, "--export", cli.url, "--export-keys", "file:keys"]
    done = cli(*collect, "--dry-run", "--json").json["collected"]["exports"]
    # The thread that was used by hand is none of the store's.
    assert done == {"manifests": 0, "pieces": 0, "kept": 1, "unknown": 3}
    pruned = cli("prune", "--keep", "1", "--sandbox", boxes, *exported, "--json").json["pruned"]
    assert pruned["layers"]["exports"] == done
    erase = ["erase", "--thread", "mine", "--sandbox", boxes, *exported]
    assert cli(*erase, "--dry-run", "--json").json["exported"] == 1
    done = cli(*erase, "--by", "ada", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.json["sandbox"]["exports"]["manifests"] == 1
    assert "exports: 0 layers" in cli(*collect).out
    assert len(list((tmp_path / "exports").glob("*/snapshots/*/*"))) == 3
    wrong = cli("sandbox", "collect", boxes, "--export", cli.url, "--export-plain")
    assert wrong.code != 0
    assert len(list((tmp_path / "exports").glob("*/snapshots/*/*"))) == 3
