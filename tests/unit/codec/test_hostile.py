"""Bytes that `encode` did not write: always DecodeFailed, nothing imported, nothing built."""

import contextlib
import random
import struct
import subprocess
import sys
from dataclasses import dataclass

import msgspec
import pytest

from perdure.codec import TypeRegistry, ValueCodec, describe
from perdure.codec._scalars import BACK
from perdure.errors import DecodeFailed, TypeUnknown

built = []


@dataclass
class Known:
    a: int = 1

    def __post_init__(self):
        built.append(self)


registry = TypeRegistry()
registry.add(Known)
codec = ValueCodec(registry)


def ext(tag, payload, code=1):
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode([tag, payload])))


def raw_ext(content, code=1):
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, content))


PAYLOADS = [
    *(None, True, 0, -1, 2**63, 1.5, "", "x", "2026-13-45", b"", b"x", b"x" * 17),
    *([], [1], [1, 2], [1, 2, 3], ["x", "y", "z"], [None, None, None], [[1, 2], [3]], [[[], 1]]),
    *([10**12, 0, 0], [0, 0, 10**18], ["2026-01-01", "Europe/Berlin", 5], ["2026-01-01", 7, 0]),
    *(["2026-01-01", "../../etc/passwd", 0], ["01:02", "/etc/passwd", 0], ["2026-01-01", "", 0]),
    *(["2026-01-01", "No/Where", 0], ["2026-01-01", "Europe", 0], ["2026-01-01", "\0", 0]),
    *({}, {"a": 1}, {1: 2}, [["a"]], [{}], ["posix", 1], ["vms", b"x"], ["windows", b"\xff"]),
    *("9" * 5000, "1E9999999999999999999", "0x10", [1.0, "2"], [1, 2.0], ["1", 0.0]),
]
TAGS = [*BACK, "obj", "enum", "flag"]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda value: ascii(value)[:40])
@pytest.mark.parametrize("tag", TAGS)
def test_wrong_payloads_fail_as_decode_failed_only(tag, payload):
    for wrapped in (ext(tag, payload), msgspec.msgpack.encode([msgspec.Raw(ext(tag, payload))])):
        for read in (codec.decode, describe):
            with contextlib.suppress(DecodeFailed):
                read(wrapped)


WRONG_TYPE = {"int": "1", "decimal": 1, "date": 1, "uuid": "x", "bytearray": 10**9, "str": "x"}


@pytest.mark.parametrize("tag", BACK)
def test_a_payload_of_another_type_is_never_taken(tag):
    for read in (codec.decode, describe):
        for wrong in (WRONG_TYPE.get(tag, "text" if tag != "path" else 5), {"a": 1}):
            if (
                tag in {"date", "decimal", "bytearray", "tuple", "set", "frozenset"}
                and read is describe
            ):
                continue  # shown as it is
            with pytest.raises(DecodeFailed):
                read(ext(tag, wrong))


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        (b"", "truncated"),
        (b"\xc1", "opcode"),
        (b"\x01\x01", "trailing"),
        (b"\xa1\xff", "UTF-8"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\xdf\xff\xff\xff\xff", "truncated"),
        (b"\xdb\xff\xff\xff\xffx", "truncated"),
        (b"\xc6\xff\xff\xff\xff", "truncated"),
        (b"\xc9\xff\xff\xff\xff\x01", "truncated"),
        (b"\x91" * 100_000, "Recursion"),
        (b"\x81\xa1k" * 100_000, "Recursion"),
        (b"\xdd\x00\x01\x00\x00" * 10_000, "Recursion"),
        (raw_ext(b""), "truncated"),
        (raw_ext(b"\x01"), "TypeError"),
        (raw_ext(b"\x91\x01"), "ValueError"),
        (raw_ext(b"\x92\x01\x01"), "'extension' with a int"),
        (raw_ext(b"\x92\x90\x01"), "'extension' with a list"),
        (raw_ext(b"\x93\xa1x\x01\x01"), "ValueError"),
        (ext("obj", ["Known", 1]), "'obj' with a int"),
        (ext("obj", ["Known"]), "ValueError"),
        (ext("obj", [["Known"], {}]), "unhashable"),
        (ext("obj", ["Known", {"b": 1}]), "does not have any more: b"),
        (ext("obj", ["Known", {1: 1}]), "DecodeFailed|TypeError|not have any more"),
        (ext("obj", ["Known", {}, 1, 2]), "TypeError"),
        (ext("enum", ["Known", "a"]), "does not exist"),
        (ext("enum", ["Known", []]), "does not exist"),
        (ext("flag", ["Known", 1]), "do not exist"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_damage_is_said(encoded, why):
    with pytest.raises(DecodeFailed, match=why):
        codec.decode(encoded)
    with contextlib.suppress(DecodeFailed):
        describe(encoded)


@pytest.mark.parametrize("code", [0, 3, 127, -2, -128])
def test_unknown_extensions_and_tags_hint_at_a_newer_perdure(code):
    with pytest.raises(DecodeFailed, match="newer Perdure"):
        codec.decode(ext("tuple", [], code))
    assert describe(ext("tuple", [], code)) == f"<extension {code}>"
    with pytest.raises(DecodeFailed, match=r"tag 'quaternion'.*newer Perdure"):
        codec.decode(ext("quaternion", [1]))
    assert describe(ext("quaternion", [1, b"\0"])) == [1, {"$bytes": "AA=="}]


def test_nested_extensions_run_out_of_stack_as_an_error():
    encoded = msgspec.msgpack.encode(None)
    for _ in range(2000):
        encoded = raw_ext(b"\x92\xa5tuple\x91" + encoded)
    for read in (codec.decode, describe):
        with pytest.raises(DecodeFailed):
            read(encoded)


def test_nothing_is_imported_or_built():
    built.clear()
    for name in (
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "known",
        "Known.a",
        "",
        "antigravity",
    ):
        with pytest.raises(TypeUnknown):
            codec.decode(ext("obj", [name, {"args": ["true"]}]))
        with pytest.raises(TypeUnknown):
            codec.decode(ext("enum", [name, "a"]))
    assert not built
    assert "antigravity" not in sys.modules


def test_time_stamps_of_msgpack_are_shown_as_text():
    encoded = b"\xd6\xff" + struct.pack(">I", 0)
    assert describe(encoded) == "1970-01-01 00:00:00+00:00"


def seeds():
    values = [None, 1, "x", [1, {"a": (1, 2)}], {1: {2}}, Known(3), 2**70]
    return [codec.encode(value) for value in values]


@pytest.mark.parametrize("seed", range(8))
def test_noise_and_damage_never_leak_another_error(seed):
    chance = random.Random(seed)  # noqa: S311  # repeatable, not secret
    whole = seeds()
    for _ in range(1500):
        damaged = bytearray(chance.choice(whole))
        for _ in range(chance.randrange(4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        damaged = damaged[: chance.randrange(len(damaged) + 1)]
        noise = chance.randbytes(chance.randrange(24))
        for read in (codec.decode, describe):
            for encoded in (bytes(damaged), noise, raw_ext(noise)):
                with contextlib.suppress(DecodeFailed):
                    read(encoded)


def test_memory_stays_small():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2)\n"
        "import msgspec; from perdure.codec import TypeRegistry, ValueCodec\n"
        "from perdure.errors import DecodeFailed\n"
        "codec, m = ValueCodec(TypeRegistry()), msgspec.msgpack\n"
        "ext = lambda *p: m.encode(m.Ext(1, m.encode(list(p))))\n"
        "for b in (b'\\xdd\\xff\\xff\\xff\\xff' * 9, b'\\xdf\\xff\\xff\\xff\\xff\\x01\\x01',\n"
        "          b'\\xc6\\xff\\xff\\xff\\xff', ext('bytearray', 2**33), ext('tuple', 2**33),\n"
        "          ext('int', 2**33), ext('decimal', '1E99999999999999999999')):\n"
        "    try: codec.decode(b)\n"
        "    except DecodeFailed: continue\n"
        "    raise SystemExit(repr(b))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
