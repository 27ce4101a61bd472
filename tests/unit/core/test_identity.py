"""Identities: the same in every process and year, distinct where anything differs."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import ask_id, call_id, digest_of, effect_id, scope_of, task_path

PARTS = {"run_id": "r_1", "task": "1:n", "kind": "effect", "name": "pay", "digest": "d", "nth": 0}


def identity(**changes):
    parts = {**PARTS, **changes}
    return call_id(parts.pop("run_id"), parts.pop("task"), **parts)


def test_identities_never_change():
    """They are stored: another result here would repeat effects of runs that are under way."""
    assert identity() == "a941d44c739a0a91280c66d42d7112a4"
    assert digest_of(b"") == "e3b0c44298fc1c149afbf4c8996fb924"
    assert effect_id("x") == "e_x"
    assert ask_id("x") == "a_x"


def test_every_part_counts():
    others = [identity(**{name: 7 if name == "nth" else "other"}) for name in PARTS]
    assert len({identity(), *others}) == len(PARTS) + 1
    assert identity(name="ab", digest="c") != identity(name="a", digest="bc")
    assert identity(nth=1, digest="d1") != identity(nth=11, digest="d")


names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=5)
lists = st.tuples(names, names, names, names, names, st.integers(0, 99))


@given(lists, lists)
def test_equal_only_if_all_parts_are(a, b):
    def made(parts):
        run, task, kind, name, digest, nth = parts
        return call_id(run, task, kind=kind, name=name, digest=digest, nth=nth)

    assert (made(a) == made(b)) == (a == b)
    assert len(made(a)) == 32


def test_paths():
    assert task_path("", 1, "n", 0) == "1:n"
    assert task_path("", 1, "n", 2) == "1:n#2"
    inner = task_path("1:n#2", 3, "m", 0)
    assert inner == "1:n#2/3:m"
    assert scope_of(inner) == "1:n#2"
    assert scope_of("1:n") == ""
