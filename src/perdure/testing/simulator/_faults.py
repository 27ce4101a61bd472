"""What goes wrong, how often, and for how long."""

import msgspec

Span = tuple[float, float]
"""Shortest and longest, in seconds."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and lengths of all faults; the same settings and seed give the same history.

    Rates are shares of calls, from 0 to 1. Fields that end in `_every_s` are mean times between two
    faults of the kind, in virtual seconds; 0: never.

    Attributes:
        chaos_s: how long faults happen; after that the network is quick and nobody dies.
        delay_s: usual way of a request, and of an answer: each drawn by itself, so that calls
            overtake each other.
        slow: calls whose way takes up to `slow_s` more.
        call_timeout_s: when callers give up, one for each seed; what they sent may still arrive.
        request_lost: requests that never arrive (half of the callers are told, half time out).
        answer_lost: answers that never arrive: written, and the caller does not know.
        repeated: requests that arrive a second time, up to `slow_s` later.
        stall_every_s: the store answers nobody for a while.
        store_crash_every_s: the store restarts; calls in flight fail, written or not.
        partition_every_s: one host can't reach the store.
        crash_every_s: one worker vanishes without a word, half of them at a crash point, or around
            a write.
        pause_every_s: one worker stops and goes on later, as a zombie.
        jump_every_s: the wall clock of one worker jumps.
        server_clock: share of seeds whose store answers with one clock for all, its server's; else
            every host goes by its own.
        server_clock_error_s: how far a host's estimate of that clock may be from it.
        jump_s: how far a wall clock jumps under a server's clock, where it must not matter.
        clock_error_s: how far each host's own wall clock may be from the truth, where hosts go by
            it. Leases protect effects of kind lookup only while two clocks differ by less than the
            lease's margin.
        drift: share by which a host's clocks run faster or slower.
        drain_every_s: one worker drains, and another one comes.
        act_lost: answers of the outside world that get lost.
        act_refused: acts that the outside world refuses.
        workers: workers that are kept alive.
    """

    chaos_s: float = 75.0
    delay_s: Span = (0.0005, 0.05)
    slow: float = 0.04
    slow_s: Span = (0.3, 6.0)
    call_timeout_s: Span = (2.0, 12.0)
    request_lost: float = 0.03
    answer_lost: float = 0.03
    repeated: float = 0.02
    stall_every_s: float = 35.0
    stall_s: Span = (0.5, 14.0)
    store_crash_every_s: float = 40.0
    store_down_s: Span = (0.1, 6.0)
    partition_every_s: float = 25.0
    partition_s: Span = (0.5, 20.0)
    crash_every_s: float = 25.0
    pause_every_s: float = 20.0
    pause_s: Span = (0.5, 20.0)
    jump_every_s: float = 15.0
    server_clock: float = 0.5
    server_clock_error_s: float = 0.05
    jump_s: float = 5000.0
    clock_error_s: float = 0.4
    drift: float = 0.001
    drain_every_s: float = 45.0
    act_lost: float = 0.08
    act_refused: float = 0.05
    workers: int = 3

    @classmethod
    def none(cls) -> "Faults":
        """Return settings under which nothing goes wrong."""
        return cls(
            chaos_s=0.0,
            slow=0.0,
            request_lost=0.0,
            answer_lost=0.0,
            repeated=0.0,
            clock_error_s=0.0,
            server_clock_error_s=0.0,
            jump_s=0.0,
            drift=0.0,
            act_lost=0.0,
            act_refused=0.0,
        )
