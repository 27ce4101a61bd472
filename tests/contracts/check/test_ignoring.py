"""Ignores in comments, baselines, and what is never printed."""

import datetime as dt
import json

import pytest

from perdure.contracts._ignoring import Ignores
from perdure.contracts.baseline import (
    baseline_text,
    counted,
    fingerprint,
    read_baseline,
    without_known,
)
from perdure.contracts.check import without_secrets
from perdure.contracts.evidence import Evidence
from perdure.contracts.files import Project
from perdure.contracts.findings import (
    Contract,
    Finding,
    Report,
    RootKind,
    RootReport,
    Verdict,
)
from perdure.errors import BaselineInvalid

TODAY = dt.date(2027, 1, 15)


def finding(line=2, file="compose.yaml", verdict=Verdict.VIOLATED, contract=Contract.R4):
    return Finding(
        contract=contract,
        service="api",
        verdict=verdict,
        evidence=(Evidence(file=file, line=line, note="no restart"),),
    )


def ignores(tmp_path, text):
    (tmp_path / "compose.yaml").write_text(text, encoding="utf-8")
    return Ignores(Project(tmp_path), today=lambda: TODAY)


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  api: # perdure: ignore[R4] systemd restarts it\n",
        "# perdure: ignore[R4] systemd restarts it\n  api:\n",
        "services:\n  api: # perdure: ignore[S1, R4] systemd restarts it until=2027-02-01\n",
        "services:\n  api: // perdure: ignore[R4] systemd restarts it\n",
    ],
)
def test_a_comment_at_the_line_or_above_with_a_reason_ignores(tmp_path, text):
    found = ignores(tmp_path, text)
    assert found.applied(finding()).ignored == "systemd restarts it"
    assert found.notices == ()


@pytest.mark.parametrize(
    ("text", "judged", "is_told"),
    [
        ("services:\n  api:\n# perdure: ignore[R4] known\n  db:\n", tuple(Contract), True),
        ("services:\n  api: # perdure: ignore[R3] known\n", tuple(Contract), True),
        ("services:\n  api: # perdure: ignore[R4] known\n", tuple(Contract), False),
        ("services:\n  api: # perdure: ignore[R4, S1] known\n", tuple(Contract), False),
        ("services:\n  api: # perdure: ignore[R3] known\n", (Contract.R4,), False),
    ],
)
def test_a_comment_that_no_finding_meets_is_told(tmp_path, text, judged, is_told):
    found = ignores(tmp_path, text)
    found.applied(finding())
    found.tell_unmet(["compose.yaml"], judged)
    assert [each.text.endswith("changes nothing") for each in found.notices] == [True] * is_told


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("x\n  api: # perdure: ignore[R4]\n", "needs a reason"),
        ("x\n  api: # perdure: ignore it\n", "names contracts"),
        ("x\n  api: # perdure: ignore[R99] why\n", "names contracts"),
        ("x\n  api: # perdure: ignore[R4] why until=2027-01-15\n", "is over"),
        ("x\n  api: # perdure: ignore[R4] why until=soon\n", "is no date"),
        ("x\n  api: # perdure: ignore[R4] until=2027-02-01\n", "needs a reason"),
    ],
)
def test_a_comment_that_is_no_good_is_told_and_does_not_count(tmp_path, text, notice):
    found = ignores(tmp_path, text)
    assert found.applied(finding()).ignored is None
    assert any(notice in each.text for each in found.notices)
    assert found.notices[0].line == 2


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("x\n  api: # perdure: ignore[R1] why\n", finding()),
        ("x\ny\n  api: # perdure: ignore[R4] why\n", finding()),
        ("x\n  api: # perdure: ignore[R4] why\n", finding(verdict=Verdict.HELD)),
        ("x\n  api: # perdure: ignore[R4] why\n", finding(line=900)),
        ("x\n  api: # perdure: ignore[R4] why\n", finding(file="missing.yaml")),
    ],
)
def test_other_contracts_lines_verdicts_and_files_are_let_be(tmp_path, text, given):
    assert ignores(tmp_path, text).applied(given).ignored is None


def report(*findings, root="compose.yaml"):
    return Report(roots=(RootReport(root=root, kind=RootKind.COMPOSE, findings=findings),))


def test_a_fingerprint_is_the_same_when_lines_move_and_another_in_another_file():
    [root] = report().roots
    assert fingerprint(root, finding(2)) == fingerprint(root, finding(50))
    others = [
        finding(file="other.yaml"),
        finding(contract=Contract.R1),
        finding(verdict=Verdict.UNDECIDED),
    ]
    prints = {fingerprint(root, each) for each in [finding(), *others]}
    assert len(prints) == 4


def test_a_baseline_knows_what_counted_when_it_was_written(tmp_path):
    held = finding(verdict=Verdict.HELD, contract=Contract.R1)
    before = report(finding(), held)
    path = tmp_path / "baseline.json"
    path.write_text(baseline_text(before), encoding="utf-8")
    known = read_baseline(path)
    now = without_known(report(finding(70), finding(contract=Contract.R2), held), known)
    assert [each.contract for _root, each in counted(now)] == [Contract.R2]
    assert json.loads(path.read_text())["known"] == {next(iter(known)): "R4 api compose.yaml"}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": 2, "known": {}}', '{"schema": 1, "known": []}', "[" * 100_000],
)
def test_another_file_is_no_baseline(tmp_path, content):
    path = tmp_path / "baseline.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BaselineInvalid):
        read_baseline(path)


def test_a_baseline_that_is_not_there(tmp_path):
    with pytest.raises(BaselineInvalid, match="can't be read"):
        read_baseline(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("uses postgresql://me:s3cret@db/x", "uses postgresql://me:***@db/x"),
        ("redis://:s3cret@cache:6379/0 is used", "redis://:***@cache:6379/0 is used"),
        ("POSTGRES_PASSWORD=s3cret", "POSTGRES_PASSWORD=***"),
        ("api_key: s3cret, then", "api_key: ***, then"),
        ("OPENAI_API_KEY='s3cret'", "OPENAI_API_KEY='***'"),
        ("http://db:5432/x has no password", "http://db:5432/x has no password"),
    ],
)
def test_secrets_are_not_printed(text, shown):
    assert without_secrets(text) == shown
