"""Reports in every format: the same facts, and none of them can break out of its format."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft4Validator
from msgspec.structs import replace

from perdure.contracts.baseline import fingerprint
from perdure.contracts.evidence import Confidence, Evidence
from perdure.contracts.findings import (
    Contract,
    Finding,
    Notice,
    Report,
    RootKind,
    RootReport,
    Unread,
    Verdict,
)
from perdure.contracts.report import (
    EXPLAINED,
    LOST,
    TITLES,
    Edit,
    as_github,
    as_json,
    as_junit,
    as_markdown,
    as_sarif,
    as_text,
    explained,
)
from tools import contracts_doc

SARIF = Draft4Validator(
    json.loads(Path(__file__).with_name("sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
)


def finding(contract, verdict, **changes):
    given = {
        "summary": f"what {contract.value} says",
        "evidence": (
            Evidence(file="app.py", line=12, note="makes a saver"),
            Evidence(file="compose.yaml", line=3, note="starts it"),
        ),
    }
    return Finding(contract=contract, service="api", verdict=verdict, **{**given, **changes})


VIOLATED = finding(Contract.S1, Verdict.VIOLATED, repair="Use a database.")
OPEN = finding(Contract.R1, Verdict.UNDECIDED, question="How long does it take?", repair=None)
HELD = finding(Contract.R2, Verdict.HELD, warnings=("it is slow",))
ABSENT = finding(Contract.R5, Verdict.NOT_APPLICABLE, evidence=())
IGNORED = finding(Contract.R4, Verdict.VIOLATED, ignored="systemd restarts it")


def report(*findings, **changes):
    root = RootReport(root="compose.yaml", kind=RootKind.COMPOSE, findings=findings)
    return Report(roots=(root,), **changes)


WHOLE = report(
    VIOLATED,
    OPEN,
    HELD,
    ABSENT,
    IGNORED,
    unread=(Unread(file="b.yaml", line=4, reason="it is not YAML"),),
    notices=(Notice(file="c.py", line=1, text="an ignore needs a reason"),),
)


def test_json_has_the_shape_that_programs_were_promised():
    body = as_json(report(VIOLATED, OPEN))
    assert body["schema"] == 1
    [root] = body["roots"]
    assert (root["root"], root["kind"]) == ("compose.yaml", "compose")
    first, second = root["findings"]
    promised = ("contract", "service", "verdict", "confidence", "evidence", "question")
    assert [first[key] for key in promised] == [
        "S1",
        "api",
        "violated",
        "proved",
        [
            {"file": "app.py", "line": 12, "note": "makes a saver"},
            {"file": "compose.yaml", "line": 3, "note": "starts it"},
        ],
        None,
    ]
    assert second["question"] == "How long does it take?"


def test_text_tells_the_violation_first_with_its_story_and_what_to_do():
    lines = as_text(WHOLE).splitlines()
    assert lines[:6] == [
        "S1 VIOLATED: a restart loses threads, paused runs and memories",
        "  api in compose.yaml",
        "  What S1 says.",
        "    app.py:12       makes a saver",
        "    compose.yaml:3  starts it",
        "  do: Use a database.",
    ]


def test_text_asks_what_is_open_and_counts_the_rest():
    text = as_text(WHOLE)
    assert "  R1  api in compose.yaml\n      How long does it take?\n      (app.py:12)" in text
    assert "1 violated, 1 open, 1 held, 1 not applicable, 1 ignored (--all names them);" in text
    assert "note: R2 holds (api in compose.yaml), but it is slow" in text
    assert "not read: b.yaml:4: it is not YAML" in text
    assert "note: c.py:1: an ignore needs a reason" in text
    assert "what R4 says" not in text.lower()


def test_text_tells_every_note_to_its_end_and_the_same_note_once():
    warning = (
        "there is no pause before it stops, so that requests of the moment may be lost: a hook"
    )
    held = [
        replace(HELD, contract=each, warnings=(warning,)) for each in (Contract.R2, Contract.R5)
    ]
    lines = as_text(report(*held, held[0])).splitlines()
    notes = [at for at, line in enumerate(lines) if line.startswith("note: ")]
    assert [lines[at][:14] for at in notes] == ["note: R2 holds", "note: R5 holds"]
    assert [lines[at + 1] for at in notes] == [lines[notes[0] + 1]] * 2
    assert lines[notes[0] + 1].endswith("a hook")


def test_text_tells_everything_if_asked():
    assert "R2 HELD" not in as_text(WHOLE)
    text = as_text(WHOLE, everything=True)
    assert "R2 HELD: SIGTERM reaches the application\n  api in compose.yaml" in text
    assert "R5 NOT APPLICABLE: an update keeps somebody listening\n  api in compose.yaml" in text


def test_text_says_how_sure_it_is_and_what_it_assumed():
    weak = finding(
        Contract.S1,
        Verdict.VIOLATED,
        confidence=Confidence.DECLARED_DEFAULT,
        assumptions=("DB=sqlite",),
    )
    text = as_text(report(weak))
    assert "(by the project's declared defaults)" in text
    assert "assumed: DB=sqlite" in text


def test_text_tells_the_same_finding_of_two_deployments_once():
    roots = [
        RootReport(root=name, kind=RootKind.COMPOSE, findings=(VIOLATED,))
        for name in ("compose.yaml", "compose.prod.yaml")
    ]
    text = as_text(Report(roots=tuple(roots)))
    assert text.count("S1 VIOLATED") == 1
    assert "api in compose.yaml; api in compose.prod.yaml" in text


def test_text_tells_one_fault_of_two_services_once_and_names_both():
    faults = [
        Finding(
            contract=Contract.R4,
            service=name,
            verdict=Verdict.VIOLATED,
            summary="it stays down",
            evidence=(Evidence(file="compose.yaml", line=line, note="no restart"),),
            repair=f"Set restart on {name}.",
        )
        for name, line in (("api", 3), ("worker", 9))
    ]
    lines = as_text(report(*faults)).splitlines()
    assert lines[0] == "R4 VIOLATED: the server stays down after a crash"
    assert lines[1] == "  api, worker in compose.yaml"
    assert lines[3:6] == [
        "    compose.yaml:3  no restart",
        "    compose.yaml:9  no restart",
        "  do: Set restart on api, worker.",
    ]


def test_text_tells_one_story_that_breaks_two_contracts_once():
    both = [
        finding(each, Verdict.VIOLATED, repair="Save it.") for each in (Contract.S1, Contract.S2)
    ]
    text = as_text(report(*both))
    assert text.startswith(
        "S1 S2 VIOLATED: a restart loses threads, paused runs and memories\n"
        "  api in compose.yaml\n  What S1 says.\n  S2, too: "
    )
    assert text.count("app.py:12") == 1


@pytest.mark.parametrize("contract", list(Contract))
def test_under_violated_no_text_says_that_the_contract_is_kept(contract):
    other = Contract.S1 if contract is not Contract.S1 else Contract.S2
    text = as_text(
        report(
            finding(other, Verdict.VIOLATED, repair="Save it."),
            finding(contract, Verdict.VIOLATED, repair="Save it."),
        )
    )
    alone = as_text(report(finding(contract, Verdict.VIOLATED, summary="")))
    said = LOST[contract].lower()
    for words in (text, alone):
        flat = " ".join(words.split()).lower()
        assert said in flat
        assert TITLES[contract].lower() not in flat


def test_two_contracts_that_hold_are_told_in_words_of_what_holds():
    both = [finding(each, Verdict.HELD) for each in (Contract.S1, Contract.S2)]
    text = as_text(report(*both), everything=True)
    assert "S2, too: a replacement of the container keeps them, too." in text
    absent = [finding(each, Verdict.NOT_APPLICABLE) for each in (Contract.S1, Contract.R2)]
    assert "R2, too: not applicable." in as_text(report(*absent), everything=True)


def test_text_leaves_out_steps_between_files_first():
    steps = [Evidence(file="a.py", line=n, note="imports b") for n in range(1, 9)]
    steps += [Evidence(file="b.py", line=n, note=f"fact {n}") for n in range(1, 6)]
    text = as_text(report(finding(Contract.S1, Verdict.VIOLATED, evidence=tuple(steps))))
    assert all(f"fact {n}" in text for n in range(1, 6))
    assert text.count("imports b") == 3


def test_text_shows_a_long_story_in_part():
    many = tuple(Evidence(file="a.py", line=n, note="step") for n in range(1, 31))
    text = as_text(report(finding(Contract.S1, Verdict.VIOLATED, evidence=many)))
    assert "... and 22 more lines (--json has all)" in text


EVIL = "a|b`c<script>\n::error::x %0A ]]> \x1b[31m &amp; \u202e"


def evil():
    evidence = (Evidence(file=f"dir/{EVIL}.py", line=1, note=EVIL),)
    changes = {"summary": EVIL, "evidence": evidence}
    return report(
        finding(Contract.S1, Verdict.VIOLATED, repair=EVIL, **changes),
        finding(Contract.S2, Verdict.UNDECIDED, question=EVIL, **changes),
        unread=(Unread(file=EVIL, line=None, reason=EVIL),),
    )


@pytest.mark.parametrize("given", [WHOLE, evil(), report(), Report(roots=())])
def test_sarif_is_what_the_schema_says(given):
    assert [each.message for each in SARIF.iter_errors(as_sarif(given, version="1.0.0"))] == []


def test_sarif_tells_the_story_as_a_code_flow_with_fingerprint_fix_and_suppression():
    edit = Edit(file="compose.yaml", line=3, removed=1, lines=("  api:", "    restart: always"))
    [root] = WHOLE.roots
    edits = {fingerprint(root, VIOLATED): (edit,)}
    log = as_sarif(WHOLE, version="1.0.0", edits=edits)
    assert list(SARIF.iter_errors(log)) == []
    first, second, ignored = log["runs"][0]["results"]
    [flow] = first["codeFlows"]
    places = [
        (
            step["location"]["physicalLocation"]["artifactLocation"]["uri"],
            step["location"]["physicalLocation"]["region"]["startLine"],
        )
        for step in flow["threadFlows"][0]["locations"]
    ]
    assert places == [("app.py", 12), ("compose.yaml", 3)]
    assert first["partialFingerprints"] == {"perdure/v1": fingerprint(root, VIOLATED)}
    [replacement] = first["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replacement["deletedRegion"]["startLine"] == 3
    assert replacement["deletedRegion"]["endLine"] == 4
    assert replacement["insertedContent"]["text"] == "  api:\n    restart: always\n"
    assert (second["kind"], second["level"]) == ("review", "none")
    assert ignored["suppressions"][0]["justification"] == "systemd restarts it"


@pytest.mark.parametrize("given", [WHOLE, evil()])
def test_junit_is_xml_with_a_case_for_each_finding(given):
    tree = ET.fromstring(as_junit(given, fails=frozenset({Verdict.VIOLATED})))  # noqa: S314  # ours
    [suite] = tree
    assert len(suite) == len(given.roots[0].findings)
    assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) == "1"


def test_junit_fails_what_it_is_told_to():
    both = frozenset({Verdict.VIOLATED, Verdict.UNDECIDED})
    tree = ET.fromstring(as_junit(WHOLE, fails=both))  # noqa: S314  # ours
    assert tree[0].get("failures") == "2"


def test_github_has_one_line_for_each_and_no_line_of_others():
    lines = as_github(WHOLE).splitlines()
    assert lines[0].startswith("::error file=app.py,line=12,title=S1 ")
    assert lines[1].startswith("::notice file=app.py,line=12,title=R1 ")
    assert len(lines) == 3
    assert len(as_github(evil()).splitlines()) == 3, "line ends in texts are escaped"


def test_markdown_has_a_table_and_stories():
    text = as_markdown(WHOLE)
    assert "| contract | `api` |" in text
    assert f"| S1 {TITLES[Contract.S1]} | **violated** |" in text
    assert f"| R4 {TITLES[Contract.R4]} | ignored |" in text
    assert "1. `app.py:12` makes a saver" in text
    assert "- R1, `api`: How long does it take?" in text


def test_markdown_escapes_what_would_be_markup():
    outside = re.sub(r"(?<!\\)`[^`]*`", "", as_markdown(evil()))
    assert not re.search(r"(?<!\\)[<>\[\]]", outside)


@pytest.mark.parametrize("contract", Contract)
def test_every_contract_is_explained(contract):
    text = explained(contract)
    assert text.startswith(f"{contract.value}: {TITLES[contract]}\n")
    assert EXPLAINED[contract].violated
    assert EXPLAINED[contract].held


def test_the_page_of_contracts_is_what_the_texts_say():
    assert contracts_doc.main(["--check"]) == 0, "see the header of tools/contracts_doc.py"


EVIL = "s\n::error::forged\r\x1b[2K\u2028##[add-mask]x"
HOSTILE = Report(
    roots=(
        RootReport(
            root=f"a/{EVIL}/compose.yaml",
            kind=RootKind.COMPOSE,
            findings=tuple(
                Finding(
                    contract=contract,
                    service=EVIL,
                    verdict=verdict,
                    summary=f"what happens ::error::forged {EVIL}",
                    evidence=(Evidence(file=EVIL, line=1, note="x " * 30 + EVIL),),
                    question=f"{EVIL}?" if verdict is Verdict.UNDECIDED else None,
                    repair="::error::forged " * 20,
                    warnings=(EVIL,),
                    assumptions=(EVIL,),
                )
                for contract, verdict in zip(Contract, list(Verdict) * 3, strict=False)
            ),
        ),
    ),
    unread=(Unread(file=EVIL, line=None, reason=EVIL),),
    notices=(Notice(file=EVIL, line=1, text=EVIL),),
)


@pytest.mark.parametrize(
    "text",
    [
        as_text(HOSTILE, everything=True),
        as_markdown(HOSTILE),
        as_junit(HOSTILE, fails=frozenset(Verdict)),
    ],
    ids=["text", "markdown", "junit"],
)
def test_no_line_of_a_report_is_a_command_of_a_workflow(text):
    assert "forged" in text
    for line in text.splitlines():
        assert not line.strip().startswith("::")
        assert not {"\x1b", "\r", "\u2028"} & set(line)
    assert "##[" not in text


def test_only_our_own_lines_are_commands_of_a_workflow():
    lines = as_github(HOSTILE).splitlines()
    findings = [f for f in HOSTILE.roots[0].findings if f.verdict in _COUNTING]
    assert len(lines) == len(findings) + len(HOSTILE.unread)
    assert all(re.match(r"::(error|notice|warning) file=", line) for line in lines)
    assert not [line for line in lines if "##[" in line or "\x1b" in line]


_COUNTING = {Verdict.VIOLATED, Verdict.UNDECIDED}


def test_what_no_file_can_answer_is_one_line_and_json_has_it_whole():
    beyond = [
        finding(each, Verdict.UNDECIDED, question="Who knows?", is_beyond_files=True, repair=None)
        for each in (Contract.C2, Contract.R1, Contract.R7)
    ]
    asked = finding(
        Contract.S1, Verdict.UNDECIDED, question="What is X_Y?", answer="--assume X_Y=VALUE"
    )
    text = as_text(report(*beyond, asked))
    assert "R1, R7, C2 can't be told from files: a trial decides (perdure inject)" in text
    assert "Who knows?" not in text
    assert "      What is X_Y?\n      answer: --assume X_Y=VALUE\n" in text
    assert "Who knows?" in as_text(report(*beyond, asked), everything=True)
    [root] = as_json(report(*beyond, asked))["roots"]
    assert [each["is_beyond_files"] for each in root["findings"]] == [True, True, True, False]
    assert root["findings"][3]["answer"] == "--assume X_Y=VALUE"


def test_many_deployments_that_tell_the_same_are_counted_once_and_named_on_request():
    names = [f"overlays/{number}/kustomization.yaml" for number in range(12)]
    roots = [RootReport(root=n, kind=RootKind.KUBERNETES, findings=(VIOLATED,)) for n in names]
    text = as_text(Report(roots=tuple(roots)))
    assert f"  api in {names[0]}, and in 11 more deployments (--all names them)" in " ".join(
        text.splitlines()[:3]
    ).replace("   ", " ").replace(" api", "  api")
    assert "\n1 violated; 1 service of " in text
    whole = as_text(Report(roots=tuple(roots)), everything=True)
    assert all(name in whole for name in names)
    assert max(map(len, whole.splitlines())) <= 100


def deployments(*names, **changes):
    """Return a report in which several deployments have the same faults."""
    state = finding(Contract.S1, Verdict.VIOLATED, repair="Use a database.", **changes)
    stop = finding(Contract.R2, Verdict.VIOLATED, summary="it is lost", repair="Use exec.")
    down = finding(Contract.R4, Verdict.VIOLATED, summary="it stays down", repair="Restart it.")
    roots = [
        RootReport(root=name, kind=RootKind.COMPOSE, findings=(down, stop, state)) for name in names
    ]
    return Report(roots=tuple(roots))


def test_many_violations_begin_with_what_loses_most_and_in_how_many_deployments():
    lines = as_text(deployments("compose.yaml", "prod.yaml", "dev.yaml")).splitlines()
    assert lines[:5] == [
        "3 contracts are violated, the worst first:",
        "  S1  a restart loses threads, paused runs and memories: api, in 3 of 3 deployments",
        "  R2  SIGTERM does not reach the application: api, in 3 of 3 deployments",
        "  R4  the server stays down after a crash: api, in 3 of 3 deployments",
        "",
    ]
    told = [line.partition(" VIOLATED")[0] for line in lines if " VIOLATED: " in line]
    assert told == ["S1", "R2", "R4"]


def test_a_story_of_many_deployments_cites_the_lines_of_the_first_one():
    roots = []
    for number, name in enumerate(("a.yaml", "b.yaml")):
        step = Evidence(file=name, line=number + 1, note="no restart")
        fault = finding(Contract.R4, Verdict.VIOLATED, evidence=(step,), repair="Restart it.")
        roots.append(RootReport(root=name, kind=RootKind.COMPOSE, findings=(fault,)))
    text = as_text(Report(roots=tuple(roots)))
    assert "a.yaml:1" in text
    assert "b.yaml:2" not in text


def test_a_long_place_has_its_note_below_it():
    step = Evidence(file=f"services/{'x' * 40}/app.py", line=7, note="makes a saver")
    text = as_text(report(finding(Contract.S1, Verdict.VIOLATED, evidence=(step,))))
    assert f"    {step.file}:7\n      makes a saver\n" in text


def test_the_same_note_of_several_services_is_told_once():
    held = [replace(HELD, service=name) for name in ("api", "worker", "beat")]
    text = as_text(report(*held))
    assert text.count("it is slow") == 1
    assert "note: R2 holds (api, worker, beat in compose.yaml), but it is slow" in text


def test_only_the_first_questions_are_asked_at_once():
    asked = [
        finding(Contract.S1, Verdict.UNDECIDED, question=f"What is A_{number}?")
        for number in range(9)
    ]
    text = as_text(report(*asked))
    assert "What is A_5?" in text
    assert "What is A_6?" not in text
    assert "and 3 more questions (--all asks them)" in text
    assert "What is A_8?" in as_text(report(*asked), everything=True)


def test_what_is_ignored_is_told_with_everything():
    assert "ignored (--all names them)" in " ".join(as_text(WHOLE).split())
    told = "ignored: R4 violated, api in compose.yaml: systemd restarts it"
    assert told in as_text(WHOLE, everything=True)


@pytest.mark.parametrize("is_fixable", [True, False])
def test_a_fix_is_named_where_there_is_one(is_fixable):
    assert ("perdure check --fix" in as_text(WHOLE, is_fixable=is_fixable)) is is_fixable


def test_what_was_assumed_in_vain_is_told():
    text = as_text(report(HELD, unused=("NOPE=1: nothing has it",)))
    assert "note: --assume NOPE=1: nothing has it" in text
