"""Virtual time: it moves only when told to, in order, and only when everything has come to rest."""

import asyncio
import math
import threading

import pytest

from perdure.clock import no_probe
from perdure.errors import SettingInvalid, UsageError
from perdure.testing import CountingIds, SeededRng, VirtualClock, virtual_services
from perdure.testing.clock import PRUNE_LENGTH_MIN, START_US


async def sleep_and_note(clock, delay_s, notes):
    await clock.sleep(delay_s)
    notes.append((delay_s, clock.monotonic_s()))


class TestByHand:
    async def test_time_stands_still(self):
        clock = VirtualClock()
        await asyncio.sleep(0.001)
        assert (clock.now_us(), clock.monotonic_s()) == (START_US, 0.0)

    async def test_advance_moves_both_clocks(self):
        clock = VirtualClock(start_us=5)
        await clock.advance(1.5)
        assert (clock.now_us(), clock.monotonic_s()) == (1_500_005, 1.5)

    async def test_sleepers_wake_in_order_of_their_time(self):
        clock, notes = VirtualClock(), []
        async with asyncio.TaskGroup() as group:
            for delay_s in (3.0, 1.0, 2.0):
                group.create_task(sleep_and_note(clock, delay_s, notes))
            await clock.advance(2.5)
            assert notes == [(1.0, 1.0), (2.0, 2.0)]
            assert clock.sleepers == 1
            await clock.advance(0.5)
        assert notes[-1] == (3.0, 3.0)

    async def test_equal_times_wake_in_order_of_arrival(self):
        clock, notes = VirtualClock(), []

        async def sleeper(name):
            await clock.sleep(1.0)
            notes.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(sleeper(name))
            await clock.advance(1.0)
        assert notes == ["a", "b", "c"]

    async def test_a_chain_of_sleeps_wakes_at_each_link_in_one_advance(self):
        clock, notes = VirtualClock(), []

        async def chain():
            for _ in range(3):
                await sleep_and_note(clock, 1.0, notes)

        task = asyncio.create_task(chain())
        await clock.advance(10.0)
        assert task.done()
        assert [at_s for _delay_s, at_s in notes] == [1.0, 2.0, 3.0]
        assert clock.monotonic_s() == 10.0

    async def test_advance_by_nothing_waits_for_rest(self):
        clock, notes = VirtualClock(), []

        async def long_way():
            for _ in range(50):
                await asyncio.sleep(0)
            notes.append("arrived")

        task = asyncio.create_task(long_way())
        await clock.advance()
        assert notes == ["arrived"]
        assert clock.monotonic_s() == 0.0
        await task

    async def test_sleep_of_zero_takes_one_turn_and_no_time(self):
        clock = VirtualClock()
        await clock.sleep(0)
        await clock.sleep(-1)
        assert clock.monotonic_s() == 0.0

    async def test_the_shortest_sleep_still_waits_for_time(self):
        clock = VirtualClock()
        task = asyncio.create_task(clock.sleep(1e-12))
        await clock.advance()
        assert not task.done()
        await clock.advance(1e-6)
        assert task.done()

    async def test_an_endless_sleep_is_a_very_long_one(self):
        clock = VirtualClock()
        task = asyncio.create_task(clock.sleep(math.inf))
        await clock.advance(1e8)
        assert not task.done()
        await clock.advance(1e9)
        assert task.done()

    async def test_two_advances_at_once_add_up(self):
        clock = VirtualClock()
        await asyncio.gather(clock.advance(1.0), clock.advance(2.0))
        assert clock.monotonic_s() == 3.0

    async def test_time_does_not_run_backwards(self):
        clock = VirtualClock()
        with pytest.raises(SettingInvalid, match="forward only"):
            await clock.advance(-1.0)
        assert clock.monotonic_s() == 0.0

    async def test_a_poller_is_named_instead_of_hanging(self, monkeypatch):
        monkeypatch.setattr("perdure.testing.clock.SETTLE_TURNS_MAX", 100)
        clock = VirtualClock()

        async def poll():
            while True:
                await clock.sleep(0)

        task = asyncio.create_task(poll())
        with pytest.raises(UsageError, match=r"polls with sleep\(0\)"):
            await clock.advance(1.0)
        task.cancel()


class TestWallClock:
    async def test_jump_moves_the_wall_clock_only(self):
        clock = VirtualClock()
        task = asyncio.create_task(clock.sleep(60.0))
        await clock.advance()
        clock.jump_wall(3600.0)
        await clock.advance()
        assert clock.now_us() == START_US + 3_600_000_000
        assert clock.monotonic_s() == 0.0
        assert not task.done()
        clock.jump_wall(-7200.0)
        assert clock.now_us() == START_US - 3_600_000_000
        await clock.advance(60.0)
        assert task.done()


class TestCancel:
    async def test_a_cancelled_sleep_wakes_nobody(self):
        clock = VirtualClock()
        task = asyncio.create_task(clock.sleep(1.0))
        await clock.advance()
        task.cancel()
        await clock.advance(2.0)
        assert task.cancelled()
        assert clock.sleepers == 0

    async def test_cancelled_behind_a_live_one(self):
        clock = VirtualClock()
        first, second = (asyncio.create_task(clock.sleep(1.0)) for _ in range(2))
        await clock.advance()
        second.cancel()
        await clock.advance(1.0)
        assert (first.done(), second.cancelled()) == (True, True)

    async def test_cancelled_sleeps_do_not_pile_up(self):
        clock = VirtualClock()
        for _ in range(10 * PRUNE_LENGTH_MIN):
            task = asyncio.create_task(clock.sleep(1e6))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert len(clock._sleepers) <= PRUNE_LENGTH_MIN

    async def test_pruning_keeps_the_living_in_order(self):
        clock, notes = VirtualClock(), []
        async with asyncio.TaskGroup() as group:
            for delay_s in range(3 * PRUNE_LENGTH_MIN, 0, -1):
                group.create_task(sleep_and_note(clock, delay_s, notes))
            await clock.advance(1000.0)
        assert [delay_s for delay_s, _at_s in notes] == list(range(1, 3 * PRUNE_LENGTH_MIN + 1))


class TestAutojump:
    async def test_an_hour_takes_no_time(self):
        clock = VirtualClock()
        async with clock.autojump():
            await clock.sleep(3600.0)
        assert clock.monotonic_s() == 3600.0

    async def test_sleepers_wake_at_their_own_time_in_order(self):
        clock, notes = VirtualClock(), []
        async with clock.autojump(), asyncio.TaskGroup() as group:
            for delay_s in (3.0, 1.0, 2.0):
                group.create_task(sleep_and_note(clock, delay_s, notes))
        assert notes == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]

    async def test_no_jump_while_anything_else_can_run(self):
        clock = VirtualClock()
        async with clock.autojump():
            sleeper = asyncio.create_task(clock.sleep(5.0))
            for _ in range(1000):
                await asyncio.sleep(0)
            assert clock.monotonic_s() == 0.0
            await sleeper
        assert clock.monotonic_s() == 5.0

    async def test_advance_is_a_sleep_in_it(self):
        clock, notes = VirtualClock(), []
        async with clock.autojump(), asyncio.TaskGroup() as group:
            group.create_task(sleep_and_note(clock, 1.0, notes))
            await clock.advance(2.0)
            assert notes == [(1.0, 1.0)]
        assert clock.monotonic_s() == 2.0

    async def test_a_sleep_that_is_cancelled_is_no_reason_to_jump(self):
        clock = VirtualClock()
        async with clock.autojump():
            long = asyncio.create_task(clock.sleep(100.0))
            await asyncio.sleep(0)
            long.cancel()
            await clock.sleep(1.0)
        assert clock.monotonic_s() == 1.0

    async def test_time_stands_still_again_after_the_block(self):
        clock = VirtualClock()
        async with clock.autojump():
            await clock.sleep(1.0)
        task = asyncio.create_task(clock.sleep(1.0))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        await clock.advance(1.0)
        assert task.done()

    async def test_errors_of_the_block_come_through_unchanged(self):
        clock = VirtualClock()
        with pytest.raises(KeyError):
            async with clock.autojump():
                raise KeyError
        await clock.advance(1.0)  # not left in autojump
        assert clock.monotonic_s() == 1.0

    async def test_blocks_do_not_nest(self):
        clock = VirtualClock()
        async with clock.autojump():
            with pytest.raises(UsageError, match="already"):
                async with clock.autojump():
                    pass
            await clock.sleep(1.0)

    async def test_a_loop_that_hides_its_queue_gets_blind_turns(self, monkeypatch):
        class Hidden:
            pass

        monkeypatch.setattr("perdure.testing.clock.asyncio.get_running_loop", Hidden)
        clock = VirtualClock()
        await clock.advance(1.0)
        assert clock.monotonic_s() == 1.0

    async def test_the_same_program_gives_the_same_history(self):
        async def history(seed):
            services = virtual_services(seed)
            notes = []

            async def worker(name):
                for _ in range(20):
                    await services.clock.sleep(services.rng.uniform(0.0, 1.0))
                    notes.append((name, services.clock.now_us()))

            async with services.clock.autojump(), asyncio.TaskGroup() as group:
                for name in range(5):
                    group.create_task(worker(name))
            return notes

        assert await history(7) == await history(7)
        assert await history(7) != await history(8)


class TestBusy:
    async def test_time_waits_for_work_on_another_os_thread(self):
        clock = VirtualClock()
        gate = threading.Event()
        async with clock.autojump():
            sleeper = asyncio.create_task(clock.sleep(30.0))
            with clock.busy():
                work = asyncio.create_task(asyncio.to_thread(gate.wait))
                await asyncio.sleep(0.01)
                assert clock.monotonic_s() == 0.0
                gate.set()
                await work
            await sleeper
        assert clock.monotonic_s() == 30.0

    async def test_advance_waits_for_it_too(self):
        clock, notes = VirtualClock(), []
        gate = threading.Event()

        async def work():
            with clock.busy():
                await asyncio.to_thread(gate.wait)
            notes.append(clock.monotonic_s())

        task = asyncio.create_task(work())
        asyncio.get_running_loop().call_later(0.01, gate.set)
        await clock.advance(5.0)
        await task
        assert notes == [0.0]

    async def test_two_pieces_of_work_must_both_end(self):
        clock = VirtualClock()
        with clock.busy():
            with clock.busy():
                pass
            advance = asyncio.create_task(clock.advance(1.0))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not advance.done()
        await advance


class TestServices:
    def test_chance_depends_on_the_seed_only(self):
        drawn = [[SeededRng(seed).uniform(0, 1) for _ in range(3)] for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]

    def test_ids_count_and_sort_by_time(self):
        ids = CountingIds()
        made = [ids.new("r", at_us) for at_us in (1000, 1000, 2000)]
        assert made == sorted(made)
        assert made[0] == "r_" + "0000000001" + "0000000000000001"

    def test_lanes_never_meet(self):
        first, second = CountingIds(lane=1), CountingIds(lane=2)
        assert not {first.new("r", 0) for _ in range(100)} & {
            second.new("r", 0) for _ in range(100)
        }

    def test_services_share_the_clock_that_they_are_given(self):
        clock = VirtualClock()
        assert virtual_services(1, clock=clock).clock is clock
        assert virtual_services(1).clock is not clock
        assert virtual_services(1).probe is no_probe

    def test_services_take_a_probe(self):
        reached = []
        virtual_services(1, probe=reached.append).probe("here")
        assert reached == ["here"]
