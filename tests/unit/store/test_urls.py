"""URLs of stores: what is shown of them."""

import sys

import pytest

from perdure.clock import system_services
from perdure.errors import SettingInvalid
from perdure.store import make_store, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("postgresql://me:s3cret@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:s3@cret@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me@db/x?sslmode=require", "postgresql://me@db/x?sslmode=require"),
        ("postgresql:///x?user=me&password=s3cret&a=1", "postgresql:///x?user=me&password=***&a=1"),
        ("postgresql://me:pa/s3cret@db/x?a=1", "postgresql://me:***@db/x?a=1"),
        ("redis://:s3cret@db", "redis://:***@db"),
    ],
)
def test_passwords_are_not_shown(url, shown):
    assert shown_url(url) == shown


def test_unknown_scheme_names_no_password():
    with pytest.raises(SettingInvalid) as caught:
        make_store("mysql://me:s3cret@db/x", system_services())
    assert "s3cret" not in str(caught.value) + repr(caught.value.fields)


def test_missing_driver_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("perdure.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingInvalid, match=r"pip install 'perdure\[postgres\]'"):
        make_store("postgresql://localhost/x", system_services())
