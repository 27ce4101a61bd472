"""The conformance suite that every `ObjectStore` must pass, shipped for the authors of such.

Subclass it in a test file and give a fixture `make_objects`, which returns a store object; each
call within a test names the same place, which is empty before the test:

    import pytest
    from perdure.testing.objects import ObjectStoreConformance

    class TestMine(ObjectStoreConformance):
        @pytest.fixture
        def make_objects(self):
            return lambda: MyObjects("mine://bucket/test")

Whether an object is durable when `put` returns can't be seen from here: kill a process after a
`put` and look, and read what the place promises. Needs pytest.
"""

import sys

import pytest

# Before it is imported: so a rule that is broken shows the values in its assertion.
if "perdure.testing._conformance_objects" not in sys.modules:
    pytest.register_assert_rewrite("perdure.testing._conformance_objects")

from perdure.testing._conformance_objects import ObjectStoreConformance

__all__ = ["ObjectStoreConformance"]
