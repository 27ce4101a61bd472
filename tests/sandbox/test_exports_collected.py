"""What nobody needs goes from the place of exports, whatever is exported or imported meanwhile."""

import asyncio
from dataclasses import replace

import pytest

from perdure import RunStatus, Runtime
from perdure.clock import system_services
from perdure.errors import NotFound, SnapshotBroken, SnapshotNotDurable, StoreCorrupt
from perdure.governance import collect_snapshots, erase, preview_erasure, prune
from perdure.sandbox import (
    ExportCollection,
    Taker,
    folder_name,
    make_objects,
    verify,
)
from perdure.sandbox.export import _collecting
from perdure.sealing import make_keys
from tests.sandbox.test_export import copied
from tests.sandbox.test_runs import graph_of
from tests.sandbox.workload import seen

pytestmark = pytest.mark.timeout(200)

BIG = "seq 200000 > big"
"""Content that is a piece of its own, and the same wherever it is written."""
TENANT = folder_name("acme")
GONE = Taker(erased=1 << 40)


def hooked(act, at):
    """Return services that call a function once, at a crash point."""
    pending = [act]

    def probe(name):
        if name == at and pending:
            pending.pop()()

    return replace(system_services(), probe=probe)


class Place:
    """The place of the exports of `hosts`, as a collector sees it."""

    def __init__(self, tmp_path):
        self.services = system_services()
        self.objects = make_objects((tmp_path / "objects").as_uri(), self.services)
        self.sealer = None

    async def ready(self, backend):
        self.sealer = await backend.exports.sealer(TENANT, makes=False)

    def collect(self, named=(), services=None, is_dry=False, **takers):
        """Collect; `takers`: by thread."""
        begun = ExportCollection(self.objects, self.sealer, services or self.services)
        of = {folder_name(thread): taker for thread, taker in takers.items()}
        return begun.finish({*named}, of, is_dry=is_dry)

    def names(self, kind):
        return self.objects.list(f"{TENANT}/{kind}/")

    async def problems(self):
        found = await verify(
            self.objects, make_keys("env:EXPORT_KEY", self.services), self.services, folder=TENANT
        )
        return [each.problem for each in found if each.problem]


@pytest.fixture
def place(hosts, tmp_path):
    return Place(tmp_path)


async def taken(backend, thread, command):
    """Return a sandbox with a new snapshot, and its id."""
    sandbox = backend.open("acme", thread)
    await sandbox.run(command)
    return sandbox, await sandbox.take()


async def exported(backend, thread, command):
    sandbox, snapshot = await taken(backend, thread, command)
    await sandbox.make_durable(snapshot)
    return sandbox, snapshot


async def test_what_no_journal_names_goes_with_its_pieces(hosts, place):
    a = hosts("a")
    _, first = await exported(a, "t", f"{BIG}; seq 100000 300000 > mine")
    _, second = await exported(a, "u", f"{BIG}; echo u > own")
    await place.ready(a)
    assert len(place.names("pieces")) == 2
    done = place.collect([second], t=GONE, u=Taker(), is_dry=True)
    assert (done.manifests, done.pieces, done.kept, len(place.names("snapshots"))) == (1, 1, 1, 2)
    done = place.collect([second], t=GONE, u=Taker())
    assert (done.manifests, done.pieces, done.kept, done.unknown) == (1, 1, 1, 0)
    assert len(place.names("pieces")) == 1
    with pytest.raises(NotFound):
        await hosts("b").open("acme", "t").fetch(first)
    await copied(a, hosts("c"), second, thread="u")
    assert await place.problems() == []
    assert place.collect([second], t=GONE, u=Taker()).manifests == 0


async def test_what_may_be_written_down_yet_stays(hosts, place):
    a = hosts("a")
    sandbox, _ = await exported(a, "t", "echo 1 > n")
    for n in range(3):
        await sandbox.run(f"rm -rf n; echo {n} > n")
        await sandbox.make_durable(await sandbox.take())
    await place.ready(a)
    # By hand, all have the number (0, 0, n): the newest stays, and what it stands on.
    assert place.collect(t=Taker()).manifests == 0
    # Of a thread that the store does not know, and of who holds the run, all stays.
    assert place.collect(u=Taker()).unknown == 4
    assert place.collect(t=Taker(held={0: 0})).manifests == 0
    assert place.collect(t=Taker(held={0: 1})).manifests == 0  # the newest
    assert place.collect(t=GONE).manifests == 4


def test_who_may_write_down_a_snapshot():
    taker = Taker(erased=1, held={1: 4, 2: 7})
    assert [taker.may_name(each) for each in ((1, 4, 1), (2, 6, 1), (2, 7, 9), (3, 1, 1))] == [
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("at", ["sandbox.export.pieces", "sandbox.export.manifest"])
async def test_a_piece_that_goes_while_an_export_counts_on_it_is_put_again(hosts, place, at):
    a = hosts("a")
    await exported(a, "t", BIG)
    await place.ready(a)
    collected = []
    services = hooked(lambda: collected.append(place.collect(t=GONE)), at)
    other = hosts("a2", services=services)
    _, snapshot = await exported(other, "u", f"{BIG}; echo u > own")
    assert collected[0].manifests == 1
    if at == "sandbox.export.pieces":  # the manifest was not there yet: nothing named the piece
        assert collected[0].pieces == 1
        [piece] = place.names("pieces")
        assert "." in piece.rpartition("/")[2]
    await copied(other, hosts("b"), snapshot, thread="u")
    assert await place.problems() == []
    # It is known by its new name: whoever exports the same again writes nothing.
    _, again = await taken(hosts("c"), "v", BIG)
    tally = await hosts("c").open("acme", "v").make_durable(again)
    assert tally.new == 0
    place.collect([snapshot, again], t=GONE)
    await copied(hosts("c"), hosts("d"), again, thread="v")


async def test_an_export_while_a_collection_removes_is_whole(hosts, place):
    a, b = hosts("a"), hosts("b")
    await exported(a, "t", BIG)
    await place.ready(a)
    _, snapshot = await taken(b, "u", f"{BIG}; echo u > own")
    loop = asyncio.get_running_loop()

    def export():
        asyncio.run_coroutine_threadsafe(b.open("acme", "u").make_durable(snapshot), loop).result(
            60
        )

    services = hooked(export, "sandbox.condemn.published")
    done = await asyncio.to_thread(place.collect, services=services, t=GONE)
    assert done.manifests == 1
    await copied(b, hosts("c"), snapshot, thread="u")
    assert await place.problems() == []


async def test_what_an_export_stands_on_goes_meanwhile(hosts, place):
    """A manifest is put again, under another name, with all that stood on it."""
    a = hosts("a")
    sandbox, _ = await exported(a, "t", f"{BIG}; echo 1 > one")
    await sandbox.run("echo 2 > two")
    middle = await sandbox.take()
    await sandbox.make_durable(middle)
    await sandbox.run("echo 3 > three")
    last = await sandbox.take()
    await place.ready(a)
    assert place.collect(t=GONE).manifests >= 2
    # What was noted of the chain counts for nothing now, by whichever way it is asked.
    await sandbox.make_durable(middle)
    await sandbox.make_durable(last)
    assert len(place.names("snapshots")) == 3
    await copied(a, hosts("b"), last)
    assert await place.problems() == []


async def test_collections_one_after_the_other_end_an_export(hosts, place):
    a = hosts("a")
    await exported(a, "t", BIG)
    await place.ready(a)

    def probe(name):
        if name == "sandbox.export.manifest":
            place.collect(t=GONE, u=GONE)

    other = hosts("a2", services=replace(system_services(), probe=probe))
    sandbox, snapshot = await taken(other, "u", BIG)
    with pytest.raises(SnapshotNotDurable, match="collections"):
        await sandbox.make_durable(snapshot)
    assert not sandbox.is_durable(snapshot)


async def test_what_is_damaged_removes_nothing(hosts, place):
    a = hosts("a")
    sandbox, first = await exported(a, "t", BIG)
    await sandbox.run("echo 2 > two")
    second = await sandbox.take()
    await sandbox.make_durable(second)
    await exported(a, "u", "seq 300000 > other")
    await place.ready(a)
    [name] = place.objects.list(f"{TENANT}/snapshots/{first}/")
    content = place.objects.get(name, bytes_max=1 << 20)
    place.objects.delete(name)
    place.objects.put(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StoreCorrupt, match="nothing was removed"):
        place.collect([second], t=Taker(), u=GONE)
    assert len(place.names("snapshots")) == 3
    assert place.names("condemned") == []
    # Where nobody needs it, its damage is of no interest.
    assert place.collect(t=GONE, u=GONE).manifests == 3
    # And a list that can't be read may give up anything: no export counts on anything then.
    [condemned] = place.names("condemned")
    place.objects.delete(condemned)
    place.objects.put(condemned, b"damaged")
    with pytest.raises(SnapshotBroken):
        place.collect(t=GONE)
    other, snapshot = await taken(a, "v", "echo v > v")
    with pytest.raises(SnapshotBroken):
        await other.make_durable(snapshot)


async def test_lists_go_when_they_are_old(hosts, place, monkeypatch):
    a = hosts("a")
    await exported(a, "t", BIG)
    await place.ready(a)
    place.collect(t=GONE)
    place.collect(t=GONE)
    assert len(place.names("condemned")) == 1
    monkeypatch.setattr(_collecting, "CONDEMNED_KEPT_US", -(10**9))
    place.collect(t=GONE)
    assert place.names("condemned") == []
    sandbox, snapshot = await exported(a, "u", BIG)
    assert ["." in name.rpartition("/")[2] for name in place.names("pieces")] == [False]
    await copied(a, hosts("b"), snapshot, thread="u")
    # A note of what is gone for so long is found out, too.
    old = a.open("acme", "t")
    await old.run("echo more > more")
    await old.make_durable(await old.take())
    await copied(a, hosts("c"), old.head(), thread="t")
    del sandbox


# -- by commands of the store ----------------------------------------------------------------------


def named_in(hosts, tmp_path, host, **settings):
    graph = graph_of("seq 200000 > big; echo a >> log", "echo b >> log", name="shells")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    return Runtime.open(url, graphs=[graph], sandbox=hosts(host, **settings)), graph


async def finished(runtime, graph, thread):
    return await (await runtime.start(graph, {}, thread=thread)).result(timeout=60)


async def test_pruned_histories_and_erased_threads_go(hosts, tmp_path, place):
    opened, graph = named_in(hosts, tmp_path, "a", durable=True)
    async with opened as runtime:
        for thread in ("t", "t", "u"):
            await finished(runtime, graph, thread)
        await (await runtime.fork("u", at=2, to="f")).result(timeout=60)
    tenant = folder_name("default")
    count = len(place.objects.list(f"{tenant}/snapshots/"))
    collector = hosts("collector")  # a host that never exported anything
    async with Runtime.open(f"sqlite:///{tmp_path / 'p.db'}", worker=False) as runtime:
        assert (await collect_snapshots(runtime, collector)).exports.manifests == 0
        preview = await preview_erasure(runtime, thread="t", sandbox=collector)
        assert preview.exported == 4
        receipt = await erase(runtime, thread="t", by="ada", sandbox=collector)
        assert receipt.sandbox.exports.manifests == 4
        assert receipt.sandbox.exports.remaining == []
        assert receipt.is_clean
        assert len(place.objects.list(f"{tenant}/snapshots/")) == count - 4
        assert len(place.objects.list(f"{tenant}/pieces/")) == 1  # others hold the same content
        await prune(runtime, keep=1, sandbox=collector)
        receipt = await erase(runtime, thread="u", by="ada", sandbox=collector)
        assert place.objects.list(f"{tenant}/snapshots/") == []
        assert place.objects.list(f"{tenant}/pieces/") == []
        assert receipt.is_clean


async def test_an_erasure_whose_place_is_away_says_so(hosts, tmp_path):
    opened, graph = named_in(hosts, tmp_path, "a", durable=True)
    async with opened as runtime:
        await finished(runtime, graph, "t")
        (tmp_path / "objects").rename(tmp_path / "away")
        receipt = await erase(runtime, thread="t", by="ada", sandbox=hosts("a"))
        assert "exported snapshots" in " ".join(each.name + each.why for each in receipt.remains)
        (tmp_path / "away").rename(tmp_path / "objects")
        done = await collect_snapshots(runtime, hosts("a"))
        assert done.exports.manifests == 2


async def test_runs_on_two_hosts_while_everything_is_collected(hosts, tmp_path, place):
    """Whatever journals name in the end is whole elsewhere."""
    graph = graph_of("seq 200000 > big; echo a >> log", "rm big; echo b >> log", name="shells")
    url = f"sqlite:///{tmp_path / 'p.db'}"
    is_over = asyncio.Event()

    async def work(host):
        async with Runtime.open(url, [graph], sandbox=hosts(host, durable=True)) as runtime:
            for n in range(3):
                for thread in ("t", f"of-{host}"):
                    await finished(runtime, graph, thread)
                if n == 1:
                    forked = await runtime.fork(f"of-{host}", at=2)
                    await forked.result(timeout=60)
                await prune(runtime, threads=[f"of-{host}"], keep=1)

    async def collect():
        count = 0
        collector = hosts("collector")
        async with Runtime.open(url, worker=False) as runtime:
            while not is_over.is_set():
                count += (await collect_snapshots(runtime, collector)).exports is not None
        return count

    async with asyncio.timeout(150):
        collecting = asyncio.create_task(collect())
        await asyncio.gather(work("a"), work("b"))
        is_over.set()
        assert await collecting > 0
    folder = folder_name("default")
    keys = make_keys("env:EXPORT_KEY", place.services)
    looked = await verify(place.objects, keys, place.services, folder=folder)
    assert [each.problem for each in looked if each.problem] == []
    async with Runtime.open(url, [graph], worker=False) as runtime:
        for thread in ("t", "of-a", "of-b"):
            for at in [None]:
                assert (await runtime.state(thread, at=at)) is not None
    # Another host goes on with each thread.
    async with Runtime.open(url, [graph], sandbox=hosts("c", durable=True)) as runtime:
        for thread in ("t", "of-a", "of-b"):
            run = await runtime.start(graph, {}, thread=thread)
            await run.result(timeout=60)
            assert await run.status() is RunStatus.SUCCEEDED
            live = hosts("c").open("default", thread)
            log = next(v for k, v in (await seen(live)).items() if k.endswith("/workspace/log"))
            assert log
