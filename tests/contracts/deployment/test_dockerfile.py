"""Dockerfiles: read as BuildKit's own parser reads them, and what they build."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.contracts.deployment._dockerfile import env_pairs, parse, read_dockerfile
from perdure.contracts.deployment._stages import build
from perdure.contracts.files import Project
from tests.contracts.buildkit import KNOWN, buildkit, reference, shape

compared = pytest.mark.skipif(
    buildkit is None, reason="nothing is compared: the package 'dockerfile' is not installed"
)


HARD = [
    "FROM a\nRUN a \\\n  b\nCMD x\n",
    "# escape=`\nFROM a\nRUN a `\n b\nCMD c:\\\n",
    "# syntax=docker/dockerfile:1\n# escape=`\nFROM a\nRUN a `\n b\n",
    "# a comment\n# escape=`\nFROM a\nRUN a \\\n b\n",
    "FROM a\nRUN a \\\n# comment\n\n  b \\\n\n\nCMD x\n",
    "FROM a\nRUN <<EOF\nCMD not\nEOF\nCMD x\n",
    'FROM a\nCOPY <<EOF <<"FILE" /x/\na\nEOF\nCMD b\nFILE\nCMD x\n',
    "FROM a\nRUN <<-EOF cat\n\ta\n\tEOF\nCMD x\n",
    "FROM a\nRUN 3<<EOF\nx\nEOF\n",
    'FROM a\nCMD ["a", "b"]\n',
    'FROM a\nCMD ["a", "b"\n',
    "FROM a\nCMD [a]\n",
    "FROM a\nCMD ['a']\n",
    'FROM ["a", "b"]\n',
    'FROM a\nONBUILD CMD ["a", "b"]\n',
    'FROM a\nONBUILD RUN --x=y ["a", "b"]\n',
    "FROM a\nRUN a ' <<EOF\nCMD x\n",
    'FROM a\nCMD ["a"] # not a comment\n',
    "FROM a\nONBUILD RUN <<EOF\nCMD x\nEOF\nCMD y\n",
    "  FROM a\n\tRUN b\n",
    "FROM a\r\nRUN b \\\r\n c\r\nCMD x\r\n",
    "FROM a\nRUN a \\\\\nCMD x\n",
    "FROM a\nRUN --mount=type=cache,target=/x --network=none pip\n",
    'FROM a\nENV a="b c" d=e\nENV x y z\n',
    "FROM a\nRUN echo a\\\n",
]


@compared
@pytest.mark.parametrize("text", HARD)
def test_agrees_with_buildkit_on_hard_ones(text):
    theirs = reference(text)
    assert theirs is not None
    assert shape(text) == theirs


PIECES = st.lists(
    st.sampled_from(
        [
            "FROM ", "RUN ", "CMD ", "COPY ", "ENV ", "ENTRYPOINT ",
            "ONBUILD ", "SHELL ", "a", "b=c",
            "\\", "`", "\n", "\n", "\\\n", "\\ \n", " ", "\t", "#", "# x\n", "# escape=`\n",
            "<<EOF", "<<-E", "EOF", "E", "\nEOF\n", "\nE\n", '"', "'",
            '["a", "b"]', '["a",', "]", "--x=y ",
            "$A", "${A:-b}", "&& ", "\r\n", "é",
        ]
    ),
    max_size=24,
)  # fmt: skip


@compared
@pytest.mark.timeout(180)
@settings(max_examples=150, deadline=None)
@given(PIECES)
@example(["RUN ", "a", "\\", "\n", "# x\n", "b"])
def test_agrees_with_buildkit_on_made_up_ones(pieces):
    text = "FROM a\n" + "".join(pieces)
    theirs = reference(text)
    ours = shape(text)
    if theirs is None or any(name not in KNOWN for name, *_ in ours + theirs):
        return  # refused, or no instruction: we call such a file no Dockerfile
    assert ours == theirs


def built(tmp_path, text, target=None, **arguments):
    (tmp_path / "Dockerfile").write_text(text)
    for name in ("app/main.py", "run.sh", "a.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    project = Project(tmp_path)
    read = read_dockerfile(project, "Dockerfile")
    return build(
        project, read, context="", target=target, arguments=arguments, assume={"SAID": "1"}
    )


def sources(image):
    return [(each.container, each.project) for each in image.sources]


def test_a_stage_has_what_the_one_before_it_has(tmp_path):
    image = built(
        tmp_path,
        'ARG TAG=3.12\nFROM python:${TAG} AS base\nWORKDIR /srv\nENV A=b C=$A-c\nCMD ["a"]\n'
        'FROM base\nWORKDIR app\nENTRYPOINT ["x"]\nVOLUME /data\n'
        "STOPSIGNAL SIGINT\nEXPOSE 80/tcp\n",
    )
    assert image.base == "python:3.12"
    assert image.workdir == "/srv/app"
    assert image.environment["C"].value is None  # A of the same ENV does not count yet
    assert image.environment["C"].question == "What is the value of A?"
    assert image.cmd is None  # an ENTRYPOINT drops the CMD of the image it stands on
    assert image.entrypoint.words == ("x",)
    assert [path for path, _ in image.volumes] == ["/data"]
    assert image.stop_signal.value == "SIGINT"
    assert image.ports == ["80"]


def test_a_target_ends_the_build_by_name_or_number(tmp_path):
    text = "FROM a AS one\nCMD x\nFROM b AS two\nCMD y\n"
    assert built(tmp_path, text, target="ONE").base == "a"
    assert built(tmp_path, text, target="0").base == "a"
    assert built(tmp_path, text).base == "b"
    assert built(tmp_path, text, target="three") is None


def test_a_build_argument_without_a_value_is_a_question(tmp_path):
    image = built(tmp_path, "ARG BASE\nFROM $BASE\nARG SAID\nENV X=$SAID\nCMD x\n")
    assert image.base is None
    assert image.base_question == "What is the build argument BASE?"
    assert image.environment["X"].value == "1"
    assert image.environment["X"].assumed == ("SAID=1",)


def test_what_is_copied_is_found_again_through_stages(tmp_path):
    image = built(
        tmp_path,
        "FROM a AS builder\nWORKDIR /src\nCOPY . .\nFROM b\nWORKDIR /app\n"
        "COPY --from=builder /src/app ./code\nCOPY run.sh a.py ./\n"
        "COPY *.py /py/\nCOPY run.sh /go\n",
    )
    assert sources(image) == [
        ("/app/code", "app"),
        ("/app/run.sh", "run.sh"),
        ("/app/a.py", "a.py"),
        ("/py/a.py", "a.py"),
        ("/go", "run.sh"),
    ]


def test_a_file_that_the_dockerfile_writes_is_known_with_its_line(tmp_path):
    image = built(tmp_path, "FROM a\nCOPY <<EOF /run.sh\n#!/bin/sh\nexec x\nEOF\nCMD /run.sh\n")
    written = image.written["/run.sh"]
    assert written.text == "#!/bin/sh\nexec x"
    assert written.place.line == 3


def test_env_has_two_forms():
    assert env_pairs("a b c", "\\") == [("a", "b c")]
    assert env_pairs('a="b c" d=e\\ f', "\\") == [("a", '"b c"'), ("d", "e\\ f")]


def test_each_instruction_knows_its_column():
    assert [i.column for i in parse("FROM a\n  CMD x\n", "D").instructions] == [1, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello\n", "it is no Dockerfile: it has no FROM"),
        ("FROM a\nSET x\n", "it is no Dockerfile: 'SET' is no instruction"),
    ],
)
def test_what_is_none_is_named(tmp_path, text, reason):
    (tmp_path / "Dockerfile").write_text(text)
    project = Project(tmp_path)
    assert read_dockerfile(project, "Dockerfile") is None
    assert [unread.reason for unread in project.unread] == [reason]
