"""Variables in text, as Compose and Dockerfiles replace them."""

import pytest

from perdure.contracts.deployment._values import seconds, size, split
from perdure.contracts.deployment._variables import Variables, is_sample
from perdure.contracts.evidence import Evidence, Known

HERE = Evidence(file="compose.yaml", line=1, note="here")
VARIABLES = Variables(
    assume={"ASSUMED": "1"}, given={"SET": Known(value="s"), "EMPTY": Known(value="")}
)

REPLACED = {
    "a": "a",
    "$SET": "s",
    "${SET}x": "sx",
    "$$SET": "$SET",
    "${NONE:-b}": "b",
    "${NONE-b}": "b",
    "${EMPTY:-b}": "b",
    "${EMPTY-b}": "",
    "${SET:+yes}": "yes",
    "${EMPTY:+yes}": "",
    "${EMPTY+yes}": "yes",
    "${NONE+yes}": "",
    "${SET:?must}": "s",
    "${NONE:-${OTHER:-${SET}}}": "s",
    "${NONE:-a:b}": "a:b",
    "$ASSUMED": "1",
    "$1 $ %": "$1 $ %",
}


@pytest.mark.parametrize(("text", "value"), REPLACED.items())
def test_compose(text, value):
    assert VARIABLES.replace(text, HERE).value == value


@pytest.mark.parametrize("text", ["$NONE", "${NONE}", "${NONE:?must}", "${EMPTY:?must}"])
def test_what_nothing_says_is_a_question(text):
    known = VARIABLES.replace(text, HERE)
    assert known.value is None
    assert known.question.startswith("What is the value of ")


def test_a_dockerfile_protects_with_a_backslash():
    assert VARIABLES.replace(r"\$SET $SET", HERE, is_compose=False).value == "$SET s"


@pytest.mark.parametrize("name", [".env.example", "a/.env.sample", "env.template", "example.env"])
def test_samples(name):
    assert is_sample(name)


@pytest.mark.parametrize("name", [".env", ".env.local", ".env.prod", "prod.env"])
def test_what_is_no_sample(name):
    assert not is_sample(name)


@pytest.mark.parametrize(
    ("text", "value"), [("10s", 10), ("1m30s", 90), ("1h", 3600), ("7", 7), ("x", None), ("", None)]
)
def test_seconds(text, value):
    assert seconds(text) == value


def test_sizes():
    assert size("1g") == 1024**3
    assert size("1Gi", is_kubernetes=True) == 1024**3
    assert size("1G", is_kubernetes=True) == 10**9
    assert size("x") is None


def test_split_is_no_shell():
    assert split("a 'b c' && d") == ("a", "b c", "&&", "d")
    assert split("a 'b") == ("a", "'b")
