"""An export goes on where the store can't read something, and says elsewhere what that was."""

import pytest

from perdure import Runtime
from perdure.errors import NotFound
from perdure.governance import _file as file_format
from perdure.governance import check, export, verify
from tests.governance.test_export import exported
from tests.governance.test_verify import audited, codes, frame_at
from tests.sealing.conftest import local_keys
from tests.sealing.test_audit import Sealed
from tests.sealing.test_audit import store as sealed_store  # noqa: F401  # a fixture


def shown(report):
    """Return what was found and where, in no order."""
    return sorted((each.code, each.run_id, each.thread) for each in report.findings)


async def both(store, to, **scope):
    """Return what an audit finds in a store, and a check in an export of it."""
    done = await exported(store, to, **scope)
    return shown(await audited(store, **scope)), shown(check(to).report), done


DAMAGE = {
    "run row": "UPDATE perdure_runs SET failure = 'no message pack' WHERE run_id = :run",
    "column of another type": "UPDATE perdure_runs SET priority = 'text' WHERE run_id = :run",
    "thread row": "UPDATE perdure_threads SET checkpoint = 'text' WHERE thread = 't'",
    "effects": "UPDATE perdure_effects SET state = 'odd' WHERE state = 'uncertain'",
    "columns of effects": "UPDATE perdure_effects SET node = x'00'",
    "columns of asks": "UPDATE perdure_asks SET question = x'00'",
    "frame": "UPDATE perdure_frames SET body = x'0199' WHERE frame_no = 2",
    "columns of a frame": "UPDATE perdure_frames SET token = 'text' WHERE frame_no = 2",
}


@pytest.mark.parametrize("harm", DAMAGE)
async def test_it_goes_on_and_the_check_finds_what_an_audit_finds(store, ids, tmp_path, harm):
    sql = DAMAGE[harm].replace(":run", f"'{ids['t'][2]}'")
    store.run(sql)
    in_store, in_file, done = await both(store, tmp_path / "all")
    assert in_file == in_store != []
    assert (done.threads, done.runs) == (3, 6)
    assert (done.unreadable > 0) == (harm != "frame")  # its bytes are there, and mean nothing
    of_thread, in_file, _done = await both(store, tmp_path / "thread", thread="t")
    assert in_file == of_thread


async def test_runs_behind_an_unreadable_one_are_proven(store, ids, tmp_path):
    store.set_run(ids["t"][2], waits="no message pack")
    seq = frame_at(store, ids["t"][0], 1)[0]
    store.set_frame(ids["t"][0], seq, at_us=1)
    in_store, in_file, done = await both(store, tmp_path / "all")
    assert in_file == in_store
    assert {code for code, run, _thread in in_file if run == ids["t"][0]} >= {"frame_changed"}
    assert done.unreadable == 1


async def test_a_thread_of_which_no_row_can_be_read(store, ids, tmp_path):
    """Its journal says whose it is."""
    for run_id in ids["u"]:
        store.set_run(run_id, waits="no message pack")
    in_store, in_file, _done = await both(store, tmp_path / "all")
    assert in_file == in_store
    assert {(code, thread) for code, _run, thread in in_file} == {("row_unreadable", "u")}
    in_store, in_file, _done = await both(store, tmp_path / "run", run_id=ids["u"][0])
    assert in_file == in_store == [("row_unreadable", ids["u"][0], "u")]
    with pytest.raises(NotFound):
        await exported(store, tmp_path / "none", run_id="r_nobody")


async def test_an_earlier_export_is_gone_on_from(store, ids, tmp_path):
    await exported(store, tmp_path / "before")
    store.set_run(ids["t"][2], waits="no message pack")
    await exported(store, tmp_path / "after")
    found = check(tmp_path / "after", since=tmp_path / "before")
    assert (codes(found.report), found.grown) == (["row_unreadable"], 6)


async def test_what_may_not_stand_there_is_refused(store, ids, tmp_path, monkeypatch):
    """A mark in the wrong place is a file that was made by somebody else."""
    with monkeypatch.context() as patched:
        original = file_format.Writer.block

        def twice(writer, block):
            original(writer, block)
            if isinstance(block, file_format.Head):
                original(writer, file_format.UnreadableOf("run", "x"))

        patched.setattr(file_format.Writer, "block", twice)
        await exported(store, tmp_path / "odd")
    with pytest.raises(file_format.ExportInvalid, match="may not stand there"):
        check(tmp_path / "odd")


async def test_files_of_format_1_are_read(store, ids, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(file_format, "FORMAT", 1)
        await exported(store, tmp_path / "first")
        patched.setattr(file_format, "FORMAT", 3)
        await exported(store, tmp_path / "third")
    assert (tmp_path / "first").read_bytes()[len(file_format.MAGIC)] == 1
    assert check(tmp_path / "first").report.findings == []
    await exported(store, tmp_path / "second")
    assert check(tmp_path / "second", since=tmp_path / "first").report.findings == []
    with pytest.raises(file_format.ExportInvalid, match="reads 1 and 2"):
        check(tmp_path / "third")


# -- encrypted stores ------------------------------------------------------------------------------


@pytest.fixture
def sealed(sealed_store) -> Sealed:  # noqa: F811
    return sealed_store


SEALED_DAMAGE = {
    "sealed column": "UPDATE perdure_runs SET input_digest = 'sealed:AAAA' WHERE rowid = 3",
    "row": "UPDATE perdure_runs SET waits = 'no message pack' WHERE rowid = 3",
}


@pytest.mark.parametrize("harm", SEALED_DAMAGE)
async def test_an_audit_of_an_encrypted_store_goes_on_behind_such_a_row(sealed, tmp_path, harm):
    sealed.run(SEALED_DAMAGE[harm])
    [(lost, thread)] = sealed.run("SELECT run_id, thread FROM perdure_runs WHERE rowid = 3")
    [(behind, number)] = sealed.run("SELECT run_id, run_no FROM perdure_runs WHERE rowid = 1")
    sql = "UPDATE perdure_frames SET at_us = at_us + 1 WHERE run_no = ? AND first_seq = 1"
    sealed.run(sql, number)
    async with sealed.open() as runtime:
        report = await verify(runtime)
        done = await export(runtime, tmp_path / "all")
        alone = await verify(runtime, run_id=lost)
    found = shown(report)
    assert ("row_unreadable", lost, thread) in found
    assert ("frame_changed", behind) in {(code, run_id) for code, run_id, _thread in found}
    assert report.runs == 4
    assert shown(check(tmp_path / "all").report) == found
    assert done.unreadable >= 1
    assert "row_unreadable" in codes(alone)
    async with Runtime.open(sealed.url, worker=False, keys=local_keys(1)) as runtime:
        assert (await verify(runtime, thread="u")).runs == 2
