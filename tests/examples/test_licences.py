"""The licence audit: its rules, its tracker, and the whole demo with a real kill."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest

from examples.licences import demo, http_json
from examples.licences.audit import (
    Audit,
    Distribution,
    Finding,
    list_distributions,
    look_up,
    read_evidence,
    render,
)
from examples.licences.classify import (
    PERMISSIVE,
    PROPRIETARY,
    STRONG_COPYLEFT,
    UNCLEAR,
    WEAK_COPYLEFT,
    Evidence,
    LicenceText,
    category_of_expression,
    classify,
    read_licence_text,
)
from examples.licences.story import Story
from examples.licences.tracker import BODY_BYTES_MAX, Findings, Latency, TrackerServer
from perdure import Absent, Found, Rejected, Unknown

ROOT = Path(__file__).resolve().parents[2]

MIT = (
    "MIT License\n\nCopyright (c) 2020 Somebody\n\nPermission is hereby granted, free of charge, "
    "to any person obtaining a copy\nof this software and associated documentation files"
)
BSD_3 = (
    "Redistribution and use in source and binary forms, with or without\nmodification, are "
    "permitted ...\n* Neither the name of the copyright holder nor the names of its"
)
BSD_2 = "Redistribution and use in source and binary forms, with or without modification"
GPL_3 = (
    "               GNU GENERAL PUBLIC LICENSE\n                Version 3, 29 June 2007\n"
    "... use the GNU Lesser General Public License instead of this License."
)
MPL = (
    'Mozilla Public License Version 2.0\n==================================\n1.12. "Secondary '
    'License" means either the GNU General Public License, Version 2.0, the GNU Lesser General ...'
)


# -- classification ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "category"),
    [
        ("MIT", PERMISSIVE),
        ("Apache-2.0 OR BSD-2-Clause", PERMISSIVE),
        ("MIT AND MPL-2.0", WEAK_COPYLEFT),
        ("MIT OR GPL-3.0-or-later", PERMISSIVE),
        ("(MIT OR GPL-2.0-only) AND LGPL-2.1-or-later", WEAK_COPYLEFT),
        ("GPL-2.0-only", STRONG_COPYLEFT),
        ("GPL-2.0+", STRONG_COPYLEFT),
        ("GPL-2.0-only WITH Classpath-exception-2.0", WEAK_COPYLEFT),
        ("Apache-2.0 WITH LLVM-exception", PERMISSIVE),
        ("LicenseRef-Proprietary", PROPRIETARY),
        ("MIT OR Unheard-1.0", PERMISSIVE),
        ("MIT AND Unheard-1.0", None),
        ("MIT AND", None),
        ("(MIT", None),
        ("MIT License", None),
        ("", None),
        (" AND ".join(["MIT"] * 1000), None),
    ],
)
def test_an_spdx_expression_is_a_choice_or_a_sum(expression, category):
    assert category_of_expression(expression) == category


@pytest.mark.parametrize(
    ("text", "spdx"),
    [
        (MIT, "MIT"),
        (BSD_3, "BSD-3-Clause"),
        (BSD_2, "BSD-2-Clause"),
        (GPL_3, "GPL-3.0-or-later"),
        (MPL, "MPL-2.0"),
        ("Do what you like.", None),
        ("", None),
    ],
)
def test_a_licence_text_names_itself_before_it_names_others(text, spdx):
    assert read_licence_text(text) == spdx


def evidence(expression="", licence_field="", classifiers=(), texts=()):
    read = [LicenceText(f"LICENSE{i}", read_licence_text(t), t) for i, t in enumerate(texts)]
    return Evidence(expression, licence_field, [f"License :: {c}" for c in classifiers], read)


@pytest.mark.parametrize(
    ("said", "category", "licence"),
    [
        (evidence("MPL-2.0", texts=[MPL]), WEAK_COPYLEFT, "MPL-2.0"),
        (evidence(licence_field="The MIT License (MIT)"), PERMISSIVE, "MIT"),
        (evidence(licence_field="BSD 2-Clause License"), PERMISSIVE, "BSD-2-Clause"),
        (evidence(licence_field="Apache License, Version 2.0"), PERMISSIVE, "Apache-2.0"),
        (evidence(licence_field="LGPLv3+"), WEAK_COPYLEFT, "LGPL-2.1-or-later"),
        (evidence(licence_field="GPLv3"), STRONG_COPYLEFT, "GPL-3.0-or-later"),
        (evidence(licence_field=MIT), PERMISSIVE, "MIT"),
        (
            evidence(
                licence_field="Dual License",
                classifiers=[
                    "OSI Approved :: BSD License",
                    "OSI Approved :: Apache Software License",
                ],
            ),
            PERMISSIVE,
            "BSD-3-Clause AND Apache-2.0",
        ),
        (
            evidence(
                classifiers=["OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)"],
                licence_field="UNKNOWN",
            ),
            WEAK_COPYLEFT,
            "LGPL-2.1-or-later",
        ),
        (
            evidence(classifiers=["Other/Proprietary License"]),
            PROPRIETARY,
            "LicenseRef-Proprietary",
        ),
        (evidence(texts=[BSD_3]), PERMISSIVE, "BSD-3-Clause"),
        (evidence(licence_field="any-OSI", texts=[MIT]), UNCLEAR, "any-OSI"),
        (evidence(classifiers=["DFSG approved"]), UNCLEAR, ""),
        (evidence(), UNCLEAR, ""),
        (evidence(texts=["Do what you like."]), UNCLEAR, ""),
    ],
)
def test_metadata_gives_a_category(said, category, licence):
    judged = classify(said)

    assert (judged.category, judged.licence) == (category, licence)
    assert judged.reason


def test_a_declaration_that_its_own_files_contradict_is_unclear():
    assert classify(evidence("MIT", texts=[GPL_3])).category == UNCLEAR


def test_parts_brought_along_are_named():
    judged = classify(evidence("MIT", texts=[MIT, MPL]))

    assert judged.category == PERMISSIVE
    assert "MPL-2.0" in judged.reason


# -- reading an environment ----------------------------------------------------------------------


def install(site, name, version="1.0", *, headers="", licence=None):
    """Make what an installer leaves of a distribution."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{headers}\n"
    (folder / "METADATA").write_text(metadata)
    record = [f"{folder.name}/METADATA,,", f"{folder.name}/RECORD,,"]
    if licence is not None:
        (folder / "licenses").mkdir()
        (folder / "licenses" / "LICENSE").write_text(licence)
        record.append(f"{folder.name}/licenses/LICENSE,,")
    (folder / "RECORD").write_text("\n".join(record) + "\n")
    return folder


def test_distributions_are_listed_once_and_by_name(tmp_path):
    install(tmp_path, "zeta")
    install(tmp_path, "Alpha_One", "2.0")
    (tmp_path / "broken-1.0.dist-info").mkdir()

    found = list_distributions(str(tmp_path))

    assert found == [Distribution("Alpha_One", "2.0"), Distribution("zeta", "1.0")]


def test_metadata_and_licence_files_are_read(tmp_path):
    install(tmp_path, "alpha", headers="License-Expression: MIT", licence=MIT)

    read = read_evidence(str(tmp_path), "alpha")

    assert read.expression == "MIT"
    assert [text.spdx for text in read.texts] == ["MIT"]


def test_a_record_can_not_make_us_read_outside_of_the_environment(tmp_path):
    site = tmp_path / "site"
    (tmp_path / "secret.dist-info").mkdir()
    (tmp_path / "secret.dist-info" / "LICENSE").write_text("secret")
    folder = install(site, "alpha")
    (folder / "RECORD").write_text("../secret.dist-info/LICENSE,,\n")

    assert read_evidence(str(site), "alpha").texts == []


def test_the_report_starts_with_the_strictest(tmp_path):
    findings = [
        Finding("b", "1", PERMISSIVE, "MIT", "by License"),
        Finding("a|b", "1", STRONG_COPYLEFT, "GPL-3.0-only", "by License", "somebody"),
    ]

    text = render(Audit(path="/site", findings=findings))

    assert text.index("Strong copyleft (1)") < text.index("Permissive (1)")
    assert "| a/b | 1 | GPL-3.0-only | by License | somebody |" in text


# -- tracker -------------------------------------------------------------------------------------


class Served:
    def __init__(self, folder, *, dedupes, latency=None):
        self.findings = Findings(folder / "tracker.db", dedupes=dedupes)
        self.server = TrackerServer(("127.0.0.1", 0), self.findings, latency or Latency())
        self.url = self.server.url
        self._os_thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._os_thread.start()
        return self

    def __exit__(self, *_error):
        self.server.shutdown()
        self._os_thread.join()
        self.server.server_close()
        self.findings.close()

    def post(self, key, name="alpha"):
        headers = {"Idempotency-Key": key}
        body = {"run": "r_1", "name": name}
        return http_json.call("POST", f"{self.url}/findings", body, headers=headers)

    def count(self, query=""):
        return http_json.call("GET", f"{self.url}/count{query}")


@pytest.fixture(params=[True, False], ids=["dedupe", "no-dedupe"])
def tracker(request, tmp_path):
    with Served(tmp_path, dedupes=request.param) as served:
        served.dedupes = request.param
        yield served


def test_a_repeated_key_gives_the_first_finding_or_a_new_row(tracker):
    first, second, other = tracker.post("k1"), tracker.post("k1"), tracker.post("k2", "beta")

    count = tracker.count()
    assert (first["id"] == second["id"]) is tracker.dedupes
    assert other["id"] != first["id"]
    assert count["requests"] == 3
    assert (count["keys"], count["names"]) == (2, 2)
    assert count["rows"] == (2 if tracker.dedupes else 3)
    assert count["duplicates"] == ({} if tracker.dedupes else {"k1": 2})


def test_counts_are_by_run_if_asked(tracker):
    tracker.post("k1")

    assert tracker.count("?run=r_1")["rows"] == 1
    assert tracker.count("?run=r_2")["rows"] == 0


async def test_look_up_finds_what_was_filed(tracker):
    request = type("Request", (), {"args": (tracker.url,)})

    assert await look_up(request, "a key/1&2") == Absent()
    filed = await asyncio.to_thread(tracker.post, "a key/1&2")
    assert await look_up(request, "a key/1&2") == Found(filed["id"])


async def test_look_up_does_not_know_when_nobody_answers():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    request = type("Request", (), {"args": (f"http://127.0.0.1:{port}",)})

    assert isinstance(await look_up(request, "k1"), Unknown)


def test_a_key_with_another_finding_is_refused(tmp_path):
    with Served(tmp_path, dedupes=True) as tracker:
        tracker.post("k1")
        with pytest.raises(Rejected, match="422"):
            tracker.post("k1", "beta")


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Idempotency-Key": "k"}, b"{", 400),
        ({"Idempotency-Key": "k"}, b"[]", 400),
        ({}, b"{}", 400),
        ({"Idempotency-Key": "k" * 201}, b"{}", 400),
        ({"Idempotency-Key": "k", "Content-Length": str(BODY_BYTES_MAX + 1)}, b"{}", 413),
    ],
)
def test_what_is_no_finding_is_refused(tmp_path, headers, body, status):
    with Served(tmp_path, dedupes=True) as tracker:
        connection = HTTPConnection(tracker.url.removeprefix("http://"), timeout=5)
        connection.request("POST", "/findings", body, headers)
        response = connection.getresponse()
        response.read()
        connection.close()

        assert response.status == status
        assert tracker.count()["rows"] == 0


def test_half_a_request_files_nothing(tmp_path):
    with Served(tmp_path, dedupes=False) as tracker:
        host, port = tracker.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as sender:
            sender.sendall(
                b"POST /findings HTTP/1.0\r\nIdempotency-Key: k\r\nContent-Length: 99\r\n\r\n{"
            )

        assert tracker.count()["rows"] == 0


def test_a_look_up_waits_for_a_request_that_came_before_it(tmp_path):
    """Else it would say `absent`, and the caller would send again what is just being written."""
    with Served(tmp_path, dedupes=False, latency=Latency(0.4, 0.4)) as tracker:
        filing = threading.Thread(target=tracker.post, args=("k1",))
        filing.start()
        time.sleep(0.05)
        answer = http_json.call("GET", f"{tracker.url}/findings?key=k1")
        filing.join()

    assert len(answer["findings"]) == 1


# -- the story -----------------------------------------------------------------------------------


def test_equal_lines_of_one_holder_are_told_once():
    story = Story(trackers=1, name_of=str)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for at_s, line in [(0, "A holds the run"), (0.1, "x"), (0.2, "y"), (0.3, "x"), (2, "x")]:
        story.tell(start + timedelta(seconds=at_s), line)

    told = story.timeline()

    assert told == [(0.0, "A holds the run"), (0.1, "x (x2)"), (0.2, "y"), (2.0, "x")]


# -- all together --------------------------------------------------------------------------------


def make_site(site):
    install(site, "alpha", headers="License-Expression: MIT", licence=MIT)
    install(site, "beta", headers="License: BSD 3-Clause License", licence=BSD_3)
    install(site, "gamma", headers="Classifier: License :: OSI Approved :: MIT License")
    install(site, "delta", headers="License-Expression: MPL-2.0", licence=MPL)
    install(site, "epsilon", licence=GPL_3)
    install(site, "zeta", headers="License: any-OSI")


def run_demo(folder, *options):
    make_site(folder / "site")
    command = [sys.executable, "-m", "examples.licences.demo", "--kills", "1", "--json"]
    command += ["--path", str(folder / "site"), "--store", str(folder / "store"), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


def test_an_empty_environment_is_said_to_be_empty(tmp_path, capsys):
    assert demo.main(["--path", str(tmp_path), "--store", str(tmp_path / "store")]) == 1
    assert "no distributions" in capsys.readouterr().out


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_every_finding_is_filed_once_though_a_worker_is_killed(tmp_path):
    done, outcome = run_demo(tmp_path, "--latency-ms", "400-800")

    assert done.returncode == 0, done.stdout + done.stderr
    assert outcome["ok"]
    assert len(outcome["kills"]) == 1
    assert outcome["takeovers"] >= 1
    assert outcome["asked"] == 1
    assert outcome["categories"] == {
        PERMISSIVE: 3,
        WEAK_COPYLEFT: 1,
        STRONG_COPYLEFT: 1,
        PROPRIETARY: 0,
        UNCLEAR: 1,
    }
    for count in outcome["trackers"].values():
        assert (count["rows"], count["keys"], count["names"]) == (6, 6, 6)
    assert "epsilon" in Path(outcome["report"]).read_text()


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_the_demo_can_fail(tmp_path):
    """A keyed effect towards a tracker that ignores the key files twice, and the demo says so."""
    done, outcome = run_demo(
        tmp_path, "--mode", "no-dedupe", "--naive", "--latency-ms", "300-500", "--seed", "1"
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert outcome["trackers"]["no-dedupe"]["duplicates"]
    assert outcome["checks"]["tracker no-dedupe: 6 findings, each once"] is False
