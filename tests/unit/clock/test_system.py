"""The machine's own time, chance and identity keep the promises of the protocols."""

import sys
import time

import pytest

from perdure.clock import SystemClock, SystemIds, SystemRng, no_probe, spell_id, system_services


def test_wall_clock_is_the_machines():
    before_us = time.time_ns() // 1000
    now_us = SystemClock().now_us()
    assert before_us <= now_us <= time.time_ns() // 1000


def test_monotonic_clock_never_runs_backwards():
    clock = SystemClock()
    readings = [clock.monotonic_s() for _ in range(100)]
    assert readings == sorted(readings)


@pytest.mark.skipif(sys.platform != "linux", reason="the monotonic clock there decides by itself")
def test_monotonic_clock_counts_the_sleep_of_the_machine():
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    now_s = SystemClock().monotonic_s()
    assert before_s <= now_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_sleep_of_zero_lets_others_run_once():
    await SystemClock().sleep(0)


def test_uniform_stays_within_its_bounds():
    rng = SystemRng()
    drawn = [rng.uniform(2.0, 3.0) for _ in range(100)]
    assert all(2.0 <= number <= 3.0 for number in drawn)
    assert len(set(drawn)) > 1


def test_ids_are_unique_even_in_the_same_microsecond():
    ids = SystemIds()
    assert len({ids.new("r", 1_000_000) for _ in range(1000)}) == 1000


def test_ids_sort_by_their_millisecond():
    ids = SystemIds()
    made = [ids.new("r", millisecond * 1000) for millisecond in (0, 1, 31, 32, 1_893_456_000_000)]
    assert made == sorted(made)


def test_id_has_prefix_and_26_digits():
    prefix, digits = SystemIds().new("w", 1_893_456_000_000_000).split("_")
    assert (prefix, len(digits)) == ("w", 26)


def test_spelling_is_fixed_because_ids_are_stored():
    assert spell_id("r", 0, 0) == "r_" + "0" * 26
    assert spell_id("r", 1000, 31) == "r_" + "0000000001" + "000000000000000z"
    assert spell_id("r", 1_893_456_000_000_000, 2**80 - 1) == "r_01q3dcbd00zzzzzzzzzzzzzzzz"


def test_probe_of_production_does_nothing():
    assert no_probe("anywhere") is None


def test_system_services_are_those_of_the_machine():
    services = system_services()
    assert isinstance(services.clock, SystemClock)
    assert isinstance(services.rng, SystemRng)
    assert isinstance(services.ids, SystemIds)
    assert services.probe is no_probe
