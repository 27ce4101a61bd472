"""A driver that was named is the one that is used, or nothing is."""

import os

import pytest

from perdure.errors import UsageError
from perdure.sandbox import IsolatedSandboxes

OWN, OTHER = ("ns", "userns") if os.geteuid() == 0 else ("userns", "ns")


def test_the_own_one_is_taken(tmp_path):
    IsolatedSandboxes(tmp_path, driver=OWN).close()
    IsolatedSandboxes(tmp_path, driver=None).close()


@pytest.mark.parametrize(
    ("driver", "match"),
    [(OTHER, "nothing was made"), ("bwrap", "there is no driver 'bwrap'"), ("", "no driver ''")],
)
def test_another_one_is_refused(tmp_path, driver, match):
    with pytest.raises(UsageError, match=match):
        IsolatedSandboxes(tmp_path / "none", driver=driver)
    assert not (tmp_path / "none").exists()
