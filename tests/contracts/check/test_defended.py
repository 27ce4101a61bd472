"""What fails at one service costs that service, and the check goes on."""

import gc

import pytest

from perdure.contracts import check as checking
from perdure.contracts._defended import defended
from perdure.contracts.check import check
from perdure.contracts.code import CodeReader
from perdure.contracts.deployment import roots
from perdure.contracts.deployment._services import ComposeService
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract, Verdict
from perdure.errors import CheckImpossible, NothingToCheck
from tests.contracts.projects import DOCKERFILE, project

TWO = """\
services:
  api:
    build: .
  other:
    build: .
"""


def found(report, service):
    return {
        each.contract: each
        for root in report.roots
        for each in root.findings
        if each.service == service
    }


def failing(method, name, error):
    def run(self, *given, **more):
        if name in {getattr(self, "name", None), *(getattr(one, "name", None) for one in given)}:
            raise error
        return method(self, *given, **more)

    return run


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), KeyError("x")])
def test_code_that_cannot_be_read_is_a_question_of_its_service(tmp_path, monkeypatch, error):
    project(tmp_path, compose_dot_yaml=TWO)
    monkeypatch.setattr(CodeReader, "read", failing(CodeReader.read, "other", error))
    report = check(tmp_path)
    assert found(report, "api")[Contract.S1].verdict is Verdict.VIOLATED
    assert found(report, "other")[Contract.S1].verdict is Verdict.UNDECIDED
    assert found(report, "other")[Contract.R4].verdict is Verdict.VIOLATED
    told = [one.reason for one in report.unread]
    assert told == [f"the check failed at the code of service 'other' with {type(error).__name__}"]


def test_a_service_that_cannot_be_read_leaves_the_others(tmp_path, monkeypatch):
    project(tmp_path, compose_dot_yaml=TWO)
    broken = failing(ComposeService.read, "other", RecursionError("deep"))
    monkeypatch.setattr(ComposeService, "read", broken)
    report = check(tmp_path)
    assert found(report, "api")[Contract.S1].verdict is Verdict.VIOLATED
    assert not found(report, "other")
    assert "service 'other' with RecursionError" in report.unread[0].reason


def test_a_dockerfile_that_cannot_be_read_leaves_the_others(tmp_path, monkeypatch):
    project(tmp_path, compose_dot_yaml=None, bad__Dockerfile=DOCKERFILE)
    whole = roots.bare_root

    def reading(project, path, assume):
        if path.startswith("bad/"):
            raise RecursionError("deep")
        return whole(project, path, assume)

    monkeypatch.setattr(roots, "bare_root", reading)
    report = check(tmp_path)
    assert [root.root for root in report.roots] == ["Dockerfile"]
    assert [one.file for one in report.unread] == ["bad/Dockerfile"]


def test_a_rule_that_fails_is_undecided_and_the_others_are_judged(tmp_path, monkeypatch):
    project(tmp_path)

    def broken(*_given, **_more):
        raise RecursionError("deep")

    monkeypatch.setattr(checking, "RULES", {**checking.RULES, Contract.S2: broken})
    got = found(check(tmp_path), "api")
    assert got[Contract.S2].verdict is Verdict.UNDECIDED
    assert got[Contract.S2].question
    assert got[Contract.S1].verdict is Verdict.VIOLATED


def test_answers_and_interruptions_go_through(tmp_path):
    files = Project(tmp_path)
    with pytest.raises(CheckImpossible), defended(files, "a", "it"):
        raise CheckImpossible("no", folder="x")
    with pytest.raises(KeyboardInterrupt), defended(files, "a", "it"):
        raise KeyboardInterrupt
    assert files.unread == ()


def test_garbage_is_collected_again_after_a_check_whatever_came_of_it(tmp_path):
    assert gc.isenabled()
    check(project(tmp_path / "a"))
    assert gc.isenabled()
    (tmp_path / "b").mkdir()
    with pytest.raises(NothingToCheck):
        check(tmp_path / "b")
    assert gc.isenabled()
