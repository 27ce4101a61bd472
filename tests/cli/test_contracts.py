"""`perdure check`: exit codes, formats, files, questions; and what it costs to start."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import typer

from perdure.cli import _app, _contracts, _quick
from perdure.cli._app import build
from perdure.contracts import check as checking
from perdure.contracts.findings import Contract
from tests.contracts.projects import MEMORY, project

ROOT = Path(__file__).resolve().parents[2]
ONLY = ("--only", "R2,R4")


@pytest.fixture
def here(cli):
    return project(cli.folder)


def test_a_violation_is_told_with_its_story_and_exit_code_1(here, inside):
    done = inside("check", *ONLY)
    assert done.code == 1
    assert done.out.startswith(
        "R4 VIOLATED: the server stays down after a crash\n  api in compose.yaml\n"
    )
    assert "    compose.yaml:2  " in done.out
    assert "\n  do: " in done.out
    assert "1 violated, 1 held; 1 service of compose.yaml (Compose)." in done.out
    assert done.err == ""


def test_what_holds_is_exit_code_0(here, inside):
    assert inside("check", "--only", "R2").code == 0


@pytest.mark.parametrize(("option", "code"), [("violated", 1), ("undecided", 1), ("never", 0)])
def test_fail_on_says_what_counts(here, inside, option, code):
    assert inside("check", *ONLY, "--fail-on", option).code == code


def test_what_is_open_counts_only_if_asked(here, inside):
    assert inside("check", "--only", "R5").code == 0
    assert inside("check", "--only", "R5", "--fail-on", "undecided").code == 1
    assert inside("check", "--only", "R5", "--strict").code == 1


def test_json_is_one_object_with_the_promised_shape(here, inside):
    done = inside("check", *ONLY, "--json")
    assert done.code == 1
    [root] = done.json["roots"]
    assert (done.json["schema"], root["root"], root["kind"]) == (1, "compose.yaml", "compose")
    assert [(f["contract"], f["verdict"]) for f in root["findings"]] == [
        ("R2", "held"),
        ("R4", "violated"),
    ]


def test_every_format_is_written_to_a_file(here, inside):
    for name in ("text", "json", "sarif", "junit", "github", "markdown"):
        done = inside("check", *ONLY, "--format", name, "--output", f"out.{name}")
        assert (done.code, done.out) == (1, "")
    assert json.loads((here / "out.sarif").read_text())["version"] == "2.1.0"
    assert ET.parse(here / "out.junit").getroot().tag == "testsuites"  # noqa: S314  # ours
    assert (here / "out.github").read_text().startswith("::error file=compose.yaml,line=2,")
    assert (here / "out.markdown").read_text().startswith("# perdure check\n")


def test_code_hosts_get_paths_from_where_the_check_is_run(here, inside, monkeypatch):
    monkeypatch.chdir(here.parent)
    below = ("check", here.name, *ONLY)
    assert inside(*below, "--format", "github").out.startswith(
        f"::error file={here.name}/compose.yaml,line=2,"
    )
    run = json.loads(inside(*below, "--format", "sarif").out)["runs"][0]
    [result] = [each for each in run["results"] if each["ruleId"] == "R4"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == f"{here.name}/compose.yaml"
    assert inside(*below, "--json").json["roots"][0]["root"] == "compose.yaml"
    (here / "inner").mkdir()
    monkeypatch.chdir(here / "inner")  # what is checked is not below it
    assert "file=compose.yaml" in inside("check", "..", *ONLY, "--format", "github").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "pdf"], "--format is one of"),
        (["--fail-on", "rain"], "--fail-on is one of"),
        (["--only", "R99"], "--only is one of"),
        (["--only", ""], "--only names no contract"),
        (["--only", " , "], "--only names no contract"),
        (["--explain", "X"], "--explain is one of"),
        (["--assume", "A"], "--assume takes KEY=VALUE"),
        (["--assume", "r4=maybe"], "R4=maybe: R4 takes held"),
        (["--assume", "R4=held", "--assume", "r4=violated"], "says both R4=held and R4=violated"),
        (["--assume", "A=1", "--assume", "A=2"], "says both A=1 and A=2"),
        (["--assume", "restart=maybe"], "restart takes no, always, unless-stopped or on-failure"),
        (["--assume", "api.replicas=many"], "api.replicas=many: replicas takes a number"),
        (["--explain", "R1", "--format", "sarif"], "--explain is text or JSON"),
        (["--baseline", "none.json"], "can't be read"),
        (["--output", "no/such/folder/x"], "can't be written"),
        (["nowhere"], "there is no folder"),
        (["compose.yaml"], "is a file; name the folder it is in: perdure check ."),
    ],
)
def test_what_can_not_be_done_is_exit_code_2(here, inside, arguments, said):
    done = inside("check", *arguments)
    assert done.code == 2
    assert said in done.err
    assert inside("check", *arguments, "--json").json["error"]["exit_code"] == 2


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError("deep"), MemoryError()])
def test_a_crash_of_the_check_is_no_finding(here, inside, monkeypatch, error):
    def broken(*_given, **_more):
        raise error

    monkeypatch.setattr(checking, "read_roots", broken)
    done = inside("check")
    assert done.code == 2
    assert done.err.startswith(f"error PD635: the check itself failed, with {type(error).__name__}")
    assert inside("check", "--json").json["error"]["exit_code"] == 2


def test_a_pipe_that_nobody_has_open_is_not_waited_for(here, inside):
    os.mkfifo(here / "pipe")
    assert "is no baseline" in inside("check", *ONLY, "--baseline", "pipe").err
    for option in ("--output", "--write-baseline"):
        done = inside("check", *ONLY, option, "pipe")
        assert (done.code, "can't be written" in done.err) == (2, True)


def test_a_name_is_no_line_of_a_log(here, inside):
    evil = 'services:\n  "s\\n::error::x":\n    build: .\n'
    (here / "compose.yaml").write_text(evil)
    for name in ("text", "markdown", "junit"):
        out = inside("check", "--all", "--format", name).out
        assert "error::x" in out
        assert not [line for line in out.splitlines() if line.strip().startswith("::")]
    for arguments in (["--fix"], ["--only", "R99"]):
        err = inside("check", *arguments).err
        assert not [line for line in err.splitlines() if line.strip().startswith("::")]


def test_a_folder_that_deploys_nothing_is_exit_code_2(cli, inside):
    done = inside("check")
    assert done.code == 2
    assert done.err.startswith("error PD632: nothing in ")


def test_a_baseline_leaves_out_what_it_knows(here, inside):
    assert inside("check", *ONLY, "--write-baseline", "known.json").code == 0
    done = inside("check", *ONLY, "--baseline", "known.json")
    assert (done.code, "VIOLATED" in done.out) == (0, False)
    assert "1 ignored" in done.out
    moved = (here / "compose.yaml").read_text().replace("services:", "\n\nservices:")
    (here / "compose.yaml").write_text(moved)
    assert inside("check", *ONLY, "--baseline", "known.json").code == 0
    (here / "compose.yaml").write_text(moved + "  other:\n    build: .\n")
    assert inside("check", *ONLY, "--baseline", "known.json").code == 1


def test_an_ignore_with_a_reason_counts_not(here, inside):
    text = (here / "compose.yaml").read_text()
    (here / "compose.yaml").write_text(
        text.replace("  api:", "  api:  # perdure: ignore[R4] systemd restarts it")
    )
    done = inside("check", *ONLY)
    assert done.code == 0
    assert "0 violated, 1 held, 1 ignored" in done.out


@pytest.mark.parametrize("contract", Contract)
def test_a_contract_is_explained_without_a_folder(inside, contract):
    done = inside("check", "--explain", contract.value.lower())
    assert done.code == 0
    assert done.out.startswith(f"{contract.value}: ")


def test_an_explanation_is_json_if_asked(inside):
    told = inside("check", "--explain", "R4", "--json").json
    assert told["contract"] == "R4"
    assert "the server is started again after a crash" in told["title"].lower()
    assert all(isinstance(each, str) for each in told["violated_when"])


def test_a_project_of_others_images_only_is_exit_code_2_and_names_them(cli, inside):
    (cli.folder / "compose.yaml").write_text("services:\n  db:\n    image: postgres:16\n")
    done = inside("check")
    assert done.code == 2
    assert "starts code of this project: 'db' of compose.yaml are images of others" in done.err


def test_a_fix_is_shown_and_not_made_without_a_yes(here, inside, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    before = (here / "compose.yaml").read_text()
    done = inside("check", *ONLY, "--fix")
    assert "+    restart: unless-stopped" in done.out
    assert (here / "compose.yaml").read_text() == before
    assert done.code == 1
    assert "--yes makes these edits" in done.err


def test_a_fix_with_yes_is_made_and_the_next_check_holds(here, inside):
    done = inside("check", *ONLY, "--fix", "--yes")
    assert done.code == 0
    assert "R4 api in compose.yaml: violated -> held" in done.err
    assert inside("check", *ONLY).code == 0
    assert "nothing is violated" in inside("check", *ONLY, "--fix", "--yes").err


def test_a_fix_is_made_when_somebody_at_the_terminal_says_yes(here, cli):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "check", *ONLY, "--fix"],
        cwd=here,
        env=cli.environment,
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    cli.processes.append(process)
    os.close(follower)
    os.write(leader, b"y\n")
    _out, err = process.communicate(timeout=60)
    os.close(leader)
    assert process.returncode == 0, err
    assert "changed compose.yaml" in err


def test_what_a_file_says_never_steers_a_terminal(here, inside):
    evil = 'services:\n  "a\\e[31mpi":\n    build: .\n'
    (here / "compose.yaml").write_text(evil)
    for name in ("text", "markdown", "github", "junit"):
        assert "\x1b" not in inside("check", *ONLY, "--format", name).out


def test_a_secret_is_not_printed(here, inside):
    (here / "Dockerfile").write_text(
        "FROM python:3.12-slim\nWORKDIR /app\nCOPY . .\n"
        "CMD API_KEY=s3cret-key uvicorn app:app --db postgresql://u:s3cret-word@db/x\n"
    )
    for name in ("text", "json", "sarif", "markdown", "github", "junit"):
        done = inside("check", "--all", "--format", name)
        assert "uvicorn" in done.out
        assert "s3cret" not in done.out


LOADED = """
import sys
from perdure.cli import run
run(["check", sys.argv[1], "--only", "R2,R4"])
heavy = ("perdure.engine", "perdure.core", "perdure.codec", "perdure.store", "perdure.graph")
light = {"asyncio", "rich", "apsw", "typer", "pydantic"}
print(*sorted(n for n in sys.modules if n.startswith(heavy) or n in light))
"""


def test_a_check_imports_no_engine_no_store_and_no_event_loop(here):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(here)],
        env={"PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] in {"", "asyncio"}, "asyncio: only for the day of today"


def test_the_quick_reader_knows_the_options_that_the_help_declares():
    command = typer.main.get_command(build(["check"])).commands["check"]
    flags, values, several = set(), set(), set()
    for parameter in command.params:
        if parameter.param_type_name == "option":
            kind = flags if parameter.is_flag else several if parameter.multiple else values
            kind |= set(parameter.opts)
    assert flags - {"--help", "-h"} == set(_quick.FLAGS)
    assert values == set(_quick.VALUES)
    assert several == {_quick.ASSUME}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["somewhere"],
        ["--only=R1", "--assume", "A=b=c", "--assume=B=", "there", "--json"],
        ["--fix", "--yes", "--strict", "--all", "--explain", "R1"],
        ["--output", "a", "--baseline", "b", "--write-baseline", "c", "--format", "sarif"],
        ["--fail-on", "never", "x"],
    ],
)
def test_the_quick_reader_understands_as_the_declared_one(words, monkeypatch):
    seen = []
    monkeypatch.setattr(_contracts, "perform", lambda asked: seen.append(asked) or 0)
    assert _app.run(["check", *words]) == 0
    assert seen == [_quick.asked_of(words)]


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["--nothing"], ["a", "b"], ["--only"], ["--assume"], ["-x"]]
)
def test_what_the_quick_reader_does_not_understand_is_left_to_the_other(words):
    assert _quick.asked_of(words) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--yes",), "--yes is for --fix"),
        (("--json", "--format", "sarif"), "two formats"),
        (("--fix", "--json"), "no other format"),
        (("--prove", "R2", "--format", "junit"), "leave out --format"),
    ],
)
def test_options_that_say_two_things_are_refused(here, inside, words, said):
    done = inside("check", *words)
    assert done.code == 2
    assert said in done.err + done.out


def test_a_proof_is_one_document_with_the_check_in_it(here, inside):
    done = inside("check", "--prove", "S2", "--engine", "process", "--json")
    body = json.loads(done.out)
    assert done.code == 2
    assert [each["contract"] for each in body["proofs"]] == ["S2"]
    assert body["proofs"][0]["verdict"] == "inconclusive"
    assert {f["contract"] for root in body["roots"] for f in root["findings"]} == {"S2"}


def test_a_fix_is_not_named_where_there_is_none(here, inside):
    assert "check --fix" in inside("check", "--only", "R4").out
    inside("check", "--fix", "--yes", "--only", "R4")
    (here / "app.py").write_text(MEMORY)
    done = inside("check", "--only", "S1,R4")
    assert done.code == 1
    assert "check --fix" not in done.out


def test_what_has_to_be_mended_by_hand_is_said_once_for_all_deployments(here, inside):
    (here / "app.py").write_text(MEMORY)
    (here / "compose.prod.yaml").write_text((here / "compose.yaml").read_text())
    err = inside("check", "--only", "S1,S2,R4", "--fix").err
    assert err.count("by hand, as") == 1
    assert "S1 S2 api in compose.prod.yaml, and in 1 more deployments: by hand" in err
    assert "R4 api in compose.prod.yaml, and in 1 more deployments: violated -> held" in err
