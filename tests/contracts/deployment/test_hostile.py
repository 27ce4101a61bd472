"""Files made to hurt: each is read within bounds, or named as unread; none ends a check."""

import os
import random

import pytest

from perdure.contracts import limits
from perdure.contracts.deployment import read_roots
from perdure.contracts.files import Project
from tests.contracts.memory import memory_within

MEMORY_MB_MAX = 400
"""What reading may take beside what is in use before it; a bomb takes gigabytes."""

LIST_BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 20)
)
MERGE_BOMB = "x0: &x0 {k: v}\n" + "".join(
    f"x{i}: &x{i}\n  <<: [{','.join([f'*x{i - 1}'] * 10)}]\n  k{i}: *x{i - 1}\n"
    for i in range(1, 30)
)
SCRIPTED = 'FROM python:3.12\nCOPY . /\nCMD ["sh", "/a.sh"]\n'
MANIFEST = (
    "apiVersion: v1\nkind: Deployment\nmetadata: {name: " + "a" * 60 + "}\n"
    "spec: {template: {spec: {containers: [{name: a, image: b}]}}}\n"
)


def chart(template, values=""):
    return {"Chart.yaml": "name: x\n", "values.yaml": values, "templates/a.yaml": template}


def kustomized(pattern):
    patch = (
        "resources: [d.yaml]\npatches:\n- target: {kind: Deployment, name: '" + pattern + "'}\n"
        "  patch: |\n    - {op: remove, path: /spec}\n"
    )
    return {"kustomization.yaml": patch, "d.yaml": MANIFEST}


def garbage():
    chance = random.Random(1)  # noqa: S311  # garbage, the same each time
    text = "FROM RUN\n\\'\"$({[<>&|;`#=,"
    return {
        f"Dockerfile.{i}": "FROM x\n" + "".join(chance.choice(text) for _ in range(3000))
        for i in range(100)
    }


CASES = {
    "aliases of aliases": {
        "compose.yaml": LIST_BOMB + "services:\n  a:\n    image: x\n    command: *a19\n"
        "    environment: *a19\n    volumes: *a19\n"
    },
    "merges of merges": {
        "compose.yaml": MERGE_BOMB + "services:\n  a:\n    <<: *x29\n    image: x\n",
        "compose.override.yaml": MERGE_BOMB + "services:\n  a:\n    <<: *x29\n    image: x\n",
    },
    "deep flow": {"compose.yaml": "services:\n  a: " + "[" * 50_000},
    "deep block": {
        "compose.yaml": "services:\n" + "".join(" " * i + "a:\n" for i in range(1, 600))
    },
    "a value that holds itself": {
        "compose.yaml": "services: &s\n  a: &a\n    image: x\n    build: *a\n    environment: *s\n"
        "    depends_on: *a\n    extends: {service: a}\n"
    },
    "extends in a circle": {
        "compose.yaml": "services:\n  a: {extends: b, image: x}\n  b: {extends: a}\n",
        "b/compose.yaml": "include: [../compose.yaml, compose.yaml]\nservices:\n"
        "  q: {image: y, extends: {file: ../b/compose.yaml, service: q}}\n",
    },
    "100 MB": {"compose.yaml": b"a: b\n" * 20_000_000, "Dockerfile": b"RUN x\n" * 17_000_000},
    "many services": {
        "compose.yaml": "services:\n" + "".join(f"  s{i}: {{image: x}}\n" for i in range(4000))
    },
    "not UTF-8": {
        "compose.yaml": "services:\n  a:\n    image: \xe9\n".encode("latin-1"),
        "Dockerfile": bytes(range(1, 256)) * 10,
    },
    "zeros": {"compose.yaml": b"\0" * 100, "Dockerfile": b"FROM x\0"},
    "copies of copies": {
        "Dockerfile": "FROM a AS s0\nCOPY . /a\n"
        + "".join(
            f"FROM a AS s{i}\nCOPY --from=s{i - 1} / /\nCOPY --from=s{i - 1} / /b\nENV X=$X$X\n"
            f"ARG A={'a' * 1000}\nENV A=$A$A$A$A\n"
            for i in range(1, 400)
        )
        + "CMD x\n"
    },
    "thousands of stages": {"Dockerfile": "FROM a\n" + "FROM 0\n" * 3000},
    "thousands of joins": {"Dockerfile": "FROM a\nRUN x" + " \\\n" * 150_000},
    "one long line": {"Dockerfile": "FROM a\nRUN " + "x " * 200_000},
    "quotes": {"Dockerfile": 'FROM a\nENV a="' + "\\\"'" * 50_000},
    "here-documents without end": {
        "Dockerfile": "FROM a\nRUN " + " ".join(f"<<E{i}" for i in range(20_000)) + "\n"
    },
    "shell: many ways": {
        "Dockerfile": SCRIPTED,
        "a.sh": "#!/bin/sh\n" + "if [ $A ]; then exec uvicorn a:b; fi\n" * 2000,
    },
    "shell: deep": {
        "Dockerfile": SCRIPTED,
        "a.sh": "if a; then\n" * 2000 + "uvicorn\n" + "fi\n" * 2000,
    },
    "shell: functions of functions": {
        "Dockerfile": SCRIPTED,
        "a.sh": "f0() { uvicorn a:b; }\n"
        + "".join(f"f{i}() {{ f{i - 1}; f{i - 1}; }}\n" for i in range(1, 60))
        + "f59\n",
    },
    "shell: a function that calls itself": {
        "Dockerfile": SCRIPTED,
        "a.sh": "f() { f; f; }\nf\nexec sh /a.sh\n",
    },
    "shell: growing variables": {
        "Dockerfile": SCRIPTED,
        "a.sh": "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A\n" * 1000 + "exec uvicorn $A\n",
    },
    "shell: many in the background": {
        "Dockerfile": SCRIPTED,
        "a.sh": "uvicorn a:b &\n" * 3000 + "wait\n",
    },
    "shell: scripts that start themselves": {
        "Dockerfile": SCRIPTED,
        "a.sh": "sh /a.sh &\n" * 30 + "sh /a.sh | sh /a.sh\n" * 30 + "uvicorn a & wait\n",
    },
    "braces": {
        "compose.yaml": 'services:\n  a:\n    image: "' + "${A:-" * 40_000 + '"\n'
        '    command: "' + "$" * 50_000 + '"\n'
    },
    "chart: open braces": chart("kind: Deployment\n" + "{{" * 100_000),
    "chart: values that are a bomb": chart(
        "apiVersion: v1\nkind: Deployment\nspec:\n"
        + "  x{{ toYaml .Values.a19 | nindent 4 }}\n" * 1000,
        LIST_BOMB,
    ),
    "chart: open conditions": chart("kind: Deployment\n" + "{{ if .Values.x }}" * 10_000),
    "chart: a number that is multiplied by itself": chart(
        "kind: Deployment\n{{- $x := mul 999999999999999 999999999999999 }}\n"
        + "{{- $x = mul $x $x }}\n" * 40
        + "x: {{ $x }}\n"
    ),
    "chart: copies of a long text": chart(
        "kind: Deployment\n"
        + "".join(
            f"{{{{- $x{i} := lower .Values.t }}}}{{{{- $y{i} := title .Values.t }}}}\n"
            for i in range(2500)
        ),
        "t: '" + "a" * 280_000 + "'\n",
    ),
    "chart: a long text that is split": chart(
        "kind: Deployment\n" + '{{- $x := splitList "a" .Values.t }}{{- $y := $x }}\n' * 2000,
        "t: '" + "ab" * 140_000 + "'\n",
    ),
    "chart: a long text many times in a list": chart(
        "kind: Deployment\n" + "{{- $x := toYaml .Values.l }}\n" * 100,
        "t: &t '" + "a" * 200_000 + "'\nl: [" + "*t, " * 10_000 + "]\n",
    ),
    "chart: signs that are trimmed": chart(
        "kind: Deployment\n" + "{{- $x := trimAll .Values.s .Values.t }}\n" * 1000,
        "t: '" + "a" * 130_000 + "'\ns: '" + "b" * 130_000 + "a'\n",
    ),
    "kustomizations in a circle": {
        "kustomization.yaml": "resources: [., ., a, a]\n",
        "a/kustomization.yaml": "resources: [.., .., ../a]\n",
    },
    "kustomization: a slow pattern": kustomized("(a|a)*(a|a)*(a|a)*b"),
    "kustomization: another": kustomized(".*" * 39 + "b"),
    "thousands of Dockerfiles": {
        f"d{i}/Dockerfile": 'FROM python:3.12\nCOPY a b c d /x/\nCMD ["python", "x.py"]\n'
        for i in range(600)
    },
    "hundreds of Compose files": {
        f"d{i}/compose.yaml": "services:\n  a:\n    image: foo/bar\n" for i in range(500)
    },
    "texts that look like builds": {
        "README.md": "docker build -t " + "a " * 200_000,
        "README2.md": "docker build \\\n" * 60_000,
        "compose.yaml": "services: {a: {image: q}}\n",
    },
    "long numbers": {
        "compose.yaml": "services: {a: {image: q, stop_grace_period: '" + "1" * 50_000 + "s',"
        " mem_limit: '" + "9" * 50_000 + "', scale: " + "9" * 5_000 + "}}\n"
    },
    "garbage": garbage(),
}


@pytest.mark.timeout(180)  # on a machine with much else to do; alone the slowest takes 2 s
@pytest.mark.parametrize("files", CASES.values(), ids=CASES.keys())
def test_reading_stays_within_bounds(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with memory_within(MEMORY_MB_MAX):
        roots = read_roots(Project(tmp_path), assume={})
    assert len(roots) <= limits.ROOTS_MAX


REASONS = {
    "deep flow": "its values are nested too deep",
    "deep block": "its values are nested too deep",
    "100 MB": "it has more than 2,000,000 bytes",
    "zeros": "it is not text",
}


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_says_what_is_wrong(tmp_path, case):
    for name, text in CASES[case].items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    project = Project(tmp_path)
    assert read_roots(project, assume={}) == ()
    assert {unread.reason for unread in project.unread} == {REASONS[case]}


def test_a_key_that_is_there_twice_is_named_with_its_line(tmp_path):
    (tmp_path / "compose.yaml").write_text("services:\n  a: {image: x}\n  a: {image: y}\n")
    project = Project(tmp_path)
    assert read_roots(project, assume={}) == ()
    (unread,) = project.unread
    assert (unread.line, unread.reason) == (3, "the key 'a' is there twice")


def test_a_compose_file_that_is_none_costs_only_itself(tmp_path):
    (tmp_path / "compose.yaml").write_text("services:\n\t- nothing\n")
    (tmp_path / "docker-compose.prod.yml").write_text("services: {api: {image: x/y}}\n")
    project = Project(tmp_path)
    assert [root.root for root in read_roots(project, assume={})] == ["docker-compose.prod.yml"]
    assert [unread.file for unread in project.unread] == ["compose.yaml"]


def test_links_lead_nowhere(tmp_path):
    secret = tmp_path / "outside"
    secret.write_text("FROM secret\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Dockerfile").write_text('FROM python:3.12\nCMD ["uvicorn", "a:b"]\n')
    (folder / "self").symlink_to(".")
    (folder / "up").symlink_to("..")
    (folder / "compose.yaml").symlink_to("compose.yaml")
    (folder / "Dockerfile.other").symlink_to(secret)
    os.mkfifo(folder / "docker-compose.yml")
    project = Project(folder)
    (root,) = read_roots(project, assume={})
    assert root.root == "Dockerfile"
