"""A store and its keys fit, or it is not opened; two that start at once get one key."""

import asyncio
import base64
import logging
import pickle

import pytest

from perdure import Runtime
from perdure.clock import system_services
from perdure.errors import (
    KeyMissing,
    PerdureError,
    SealBroken,
    SettingInvalid,
    StorePlain,
    StoreSealed,
)
from perdure.ids import RunId
from perdure.sealing import KeyProvider, LocalKeys, make_keys, new_key, parse_keys
from tests.governance.canaries import canary, graphs
from tests.sealing.conftest import local_keys


def opened(url, **options):
    return Runtime.open(url, graphs(), worker=False, **options)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/store.db"


async def test_an_encrypted_store_without_keys_says_what_to_do(url):
    async with opened(url, keys=local_keys(1)):
        pass
    with pytest.raises(StoreSealed, match="--keys env:NAME or --keys file:PATH"):
        async with opened(url):
            pass


async def test_a_plain_store_with_keys_is_refused_and_left_as_it_was(url):
    async with opened(url) as runtime:
        run = await runtime.start("asking", {"text": "plain"})
    with pytest.raises(StorePlain, match="not encrypted and has data"):
        async with opened(url, keys=local_keys(1)):
            pass
    async with opened(url) as runtime:
        assert (await runtime.get(run.id)).id == run.id


async def test_a_plain_store_with_a_schedule_only_is_refused(url):
    async with opened(url) as runtime:
        await runtime.schedule("nightly", "asking", {}, cron="0 3 * * *")
    with pytest.raises(StorePlain):
        async with opened(url, keys=local_keys(1)):
            pass


async def test_an_empty_store_becomes_an_encrypted_one(url):
    async with opened(url):
        pass
    async with opened(url, keys=local_keys(1)) as runtime:
        await runtime.start("asking", {})
    with pytest.raises(StoreSealed):
        async with opened(url):
            pass


async def test_another_key_of_the_same_id_is_refused(url):
    async with opened(url, keys=local_keys(1)):
        pass
    other = LocalKeys("other keys", [("k1", b"x" * 32)], system_services().entropy)
    with pytest.raises(SealBroken, match="Are these the keys of this store"):
        async with opened(url, keys=other):
            pass
    with pytest.raises(KeyMissing, match="'k1' is needed, and test keys has k2"):
        async with opened(url, keys=local_keys(2)):
            pass


async def test_of_two_that_start_at_once_on_a_thread_one_makes_its_key(url):
    async with opened(url, keys=local_keys(1)) as one, opened(url, keys=local_keys(1)) as other:
        runs = await asyncio.gather(
            *(
                runtime.start("asking", {"text": f"{number}"}, thread=f"t{number % 5}")
                for number in range(20)
                for runtime in (one, other)
            )
        )
        for runtime in (one, other):
            for run in runs:
                assert await runtime.events(run.id)
        keys = await one.engine.store.read_keys()
        assert len([key for key in keys if key.scope.startswith("thread:")]) == 5


async def test_a_plain_row_in_an_encrypted_store_is_refused(url):
    async with opened(url) as plain, opened(url, keys=local_keys(1)) as runtime:
        # As a process does that was there before the store had keys.
        run = await plain.start("asking", {"text": "plain"})
        with pytest.raises(SealBroken, match=r"no data key|not encrypted"):
            await runtime.engine.store.read_frames(RunId(run.id))


# -- providers -------------------------------------------------------------------------------------


def spelled(number):
    return base64.b64encode(bytes([number]) * 32).decode()


async def test_keys_of_a_variable(monkeypatch):
    monkeypatch.setenv("SOME_KEYS", f"old:{spelled(1)}, new:{spelled(2)}")
    keys = make_keys("env:SOME_KEYS", system_services())
    assert isinstance(keys, KeyProvider)
    assert await keys.current() == "new"
    for key_id in ("old", "new"):
        wrapped = await keys.wrap(b"d" * 32, key_id=key_id, context=b"here")
        assert await keys.unwrap(wrapped, key_id=key_id, context=b"here") == b"d" * 32
        with pytest.raises(SealBroken):
            await keys.unwrap(wrapped, key_id=key_id, context=b"elsewhere")
    with pytest.raises(SealBroken, match="not wrapped by the key 'old'"):
        await keys.unwrap(wrapped, key_id="old", context=b"here")


async def test_keys_of_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{spelled(1)}  # without an id\n\nb:{spelled(2)}\n")
    path.chmod(0o600)
    assert await make_keys(f"file:{path}", system_services()).current() == "b"
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(SettingInvalid, match="chmod 600"):
            make_keys(f"file:{path}", system_services())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  # nothing",
        "short",
        f"a:{spelled(1)} a:{spelled(2)}",
        f"bad id!:{spelled(1)}",
        "x" * 44,
    ],
)
def test_text_that_is_no_keys_is_refused_and_not_shown(text):
    with pytest.raises(SettingInvalid) as caught:
        parse_keys(text, "env:X")
    assert spelled(1) not in str(caught.value)
    assert "x" * 20 not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("spec", ["env:NOT_SET", "file:/nowhere/keys", "nope:x", "plain text"])
def test_a_place_without_keys_is_refused(spec):
    with pytest.raises(SettingInvalid):
        make_keys(spec, system_services())


def test_a_key_given_in_place_of_its_name_is_not_shown():
    with pytest.raises(SettingInvalid) as caught:
        make_keys(spelled(7), system_services())
    assert spelled(7) not in str(caught.value)


def test_a_plug_in_is_found_by_its_scheme(monkeypatch):
    class Point:
        name = "kms"

        def load(self):
            return lambda rest, services: (rest, services)

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point()])
    services = system_services()
    assert make_keys("kms:key/1", services) == ("key/1", services)


def test_new_keys_are_different_and_parse():
    one, other = (new_key(system_services().entropy) for _ in range(2))
    assert one != other
    [(name, key), _] = parse_keys(f"{one}\n{other}", "here")
    assert one == f"{name}:{base64.b64encode(key).decode()}"


async def test_secrets_are_in_no_log_error_or_repr(url, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    text = spelled(9)
    monkeypatch.setenv("SOME_KEYS", text)
    provider = make_keys("env:SOME_KEYS", system_services())
    shown = [repr(provider), str(provider)]
    async with opened(url, keys=provider) as runtime:
        await runtime.start("asking", {"text": canary("state")})
        shown += [repr(runtime.engine.store), repr(runtime.engine.store.keyring)]
        keys = runtime.engine.store.keyring._known.values()
        shown += [repr(key) for key in keys]
    try:
        async with opened(url, keys=local_keys(1)):
            pass
    except PerdureError as error:
        shown += [str(error), repr(error.fields), repr(pickle.loads(pickle.dumps(error)))]
    for each in [*shown, caplog.text]:
        assert text not in each
        assert (bytes([9]) * 8).hex() not in each
        assert repr(bytes([9]) * 8)[2:-1] not in each
    assert len(shown) >= 9
