"""Rules of places of objects; see `perdure.testing.objects`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure.errors import NotFound, SnapshotBroken, UsageError
from perdure.sandbox import ObjectStore

MakeObjects = Callable[[], ObjectStore]

NAMES = ("a/b/1", "a/b/2", "a/b-c", "a/c/1", "b", "z.9_-X")
"""In the order that a store lists them."""


def _put(make_objects: MakeObjects, name: str, content: bytes) -> bool:
    return make_objects().put(name, content)


class ObjectStoreConformance:
    """Rules of `perdure.sandbox.ObjectStore`."""

    @pytest.fixture
    def objects(self, make_objects: MakeObjects) -> ObjectStore:
        """Return one object of the place."""
        return make_objects()

    def test_it_is_a_store_of_objects(self, objects: ObjectStore) -> None:
        """It has every method, and says where it is."""
        assert isinstance(objects, ObjectStore)
        assert objects.place

    def test_what_was_put_is_there_for_all(
        self, objects: ObjectStore, make_objects: MakeObjects
    ) -> None:
        """Bytes come back as they were, also to others."""
        for content in (b"", b"x", bytes(range(256)) * 5_000):
            name = f"some/{len(content)}"
            assert not objects.has(name)
            assert objects.put(name, content)
            for each in (objects, make_objects()):
                assert each.has(name)
                assert each.get(name, bytes_max=len(content)) == content

    def test_the_first_one_stays(self, objects: ObjectStore, make_objects: MakeObjects) -> None:
        """An object is never replaced."""
        assert objects.put("a/one", b"first")
        assert not objects.put("a/one", b"second")
        assert not make_objects().put("a/one", b"third")
        assert objects.get("a/one", bytes_max=100) == b"first"

    def test_of_many_at_once_one_makes_it(self, make_objects: MakeObjects) -> None:
        """Of several that put the same name at the same time, one is told that it made it."""
        for n in range(5):
            contents = [bytes([each]) * 10_000 for each in range(8)]
            with ThreadPoolExecutor(8) as pool:
                names = [f"at/once-{n}"] * len(contents)
                made = list(pool.map(_put, [make_objects] * len(contents), names, contents))
            assert sum(made) == 1
            found = make_objects().get(f"at/once-{n}", bytes_max=10_000)
            assert found == contents[made.index(True)]

    def test_what_is_not_there(self, objects: ObjectStore) -> None:
        """A name without an object, also below and above one, is not found."""
        objects.put("a/b", b"x")
        for name in ("a", "a/b/c", "b", "a/c"):
            assert not objects.has(name)
            with pytest.raises(NotFound):
                objects.get(name, bytes_max=10)

    def test_more_than_was_asked_for_is_refused(self, objects: ObjectStore) -> None:
        """An object that is longer than what was put there is not read."""
        objects.put("long", bytes(1_000))
        with pytest.raises(SnapshotBroken):
            objects.get("long", bytes_max=999)

    def test_names_are_listed_in_order(self, objects: ObjectStore) -> None:
        """By prefix, above a name, so many at most; a prefix need not end at a part's end."""
        for name in reversed(NAMES):
            objects.put(name, b"")
        expected = sorted(NAMES)
        assert objects.list("") == expected
        assert objects.list("a/b") == [name for name in expected if name.startswith("a/b")]
        assert objects.list("a/b/") == ["a/b/1", "a/b/2"]
        assert (
            objects.list("", after="a/b/1", limit=2) == expected[expected.index("a/b/1") + 1 :][:2]
        )
        assert objects.list("none/") == []

    def test_all_pages_are_all(self, objects: ObjectStore) -> None:
        """Who goes on after the last name of each answer sees every name once."""
        names = sorted(f"p/{n % 7}/{n}" for n in range(50))
        for name in names:
            objects.put(name, b"")
        found: list[str] = []
        while page := objects.list("p/", after=found[-1] if found else "", limit=8):
            found += page
        assert found == names

    def test_what_was_removed_is_gone(
        self, objects: ObjectStore, make_objects: MakeObjects
    ) -> None:
        """Removed is removed, once more too, and the name is free again."""
        objects.put("a/gone", b"1")
        objects.put("a/stays", b"2")
        objects.delete("a/gone")
        objects.delete("a/gone")
        objects.delete("a/never/was")
        assert not make_objects().has("a/gone")
        assert objects.list("a/") == ["a/stays"]
        assert objects.put("a/gone", b"3")
        assert objects.get("a/gone", bytes_max=10) == b"3"

    @pytest.mark.parametrize(
        "name",
        ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.b", ".", "a b", "a\n", "ä", "x" * 513],
    )
    def test_what_is_no_name_is_refused(self, objects: ObjectStore, name: str) -> None:
        """A name that leads elsewhere, or that a place could spell in two ways, is none."""
        for act in (
            lambda: objects.put(name, b""),
            lambda: objects.get(name, bytes_max=1),
            lambda: objects.has(name),
            lambda: objects.delete(name),
        ):
            with pytest.raises(UsageError):
                act()
