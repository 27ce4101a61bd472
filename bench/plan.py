"""What is measured: the figures, their floors and their goals."""

from bench.figures import Goal, Spec
from bench.peers import SYSTEMS

DELAY_MS = 2.0
"""The sleep after each commit that stands for a slow disk."""

SLOW = ".slow"
"""Ends the names of what was measured with that sleep."""


def _both(quiet: Spec, slow_goal: Goal | None) -> list[Spec]:
    """Return a figure as it is, and the same on a slow disk."""
    slow = Spec(
        name=quiet.name + SLOW,
        title=f"{quiet.title}, slow disk",
        unit=quiet.unit,
        floor=None if quiet.floor is None else quiet.floor + SLOW,
        goal=slow_goal,
    )
    return [quiet, slow]


FLOORS = [
    *_both(Spec(name="floor.commit", title="one row, one commit", unit="ms"), None),
    *_both(Spec(name="floor.group", title="64 rows in one commit", unit="rows/s"), None),
    Spec(name="floor.step", title="a step that keeps nothing", unit="ms"),
]

STEP = [
    *_both(
        Spec(name="step.wall", title="step in sequence, time", unit="ms", floor="floor.commit",
             goal=Goal(limit=0.4, of_ratio=True)),
        Goal(limit=0.05, of_ratio=True),
    ),
    *_both(
        Spec(name="step.cpu", title="step in sequence, CPU", unit="ms", goal=Goal(limit=0.05)),
        Goal(limit=0.05),
    ),
    Spec(name="step.plain", title="step in sequence, over one that keeps nothing", unit="ms",
         floor="floor.step"),
]  # fmt: skip

EFFECT = [
    *_both(
        Spec(name="effect.wall", title="step with a keyed effect, time", unit="ms",
             floor="floor.commit", goal=Goal(limit=3.0, of_ratio=True)),
        Goal(limit=2.2, of_ratio=True),
    ),
    *_both(Spec(name="effect.cpu", title="step with a keyed effect, CPU", unit="ms"), None),
]  # fmt: skip

THROUGHPUT = [
    *_both(
        Spec(name="runs.rate", title="64 runs of 10 steps at once", unit="steps/s",
             floor="floor.group", goal=Goal(limit=15_000, at_least=True)),
        None,
    ),
    *_both(Spec(name="runs.cpu", title="64 runs of 10 steps, CPU per step", unit="ms"), None),
]  # fmt: skip

LOG = [
    Spec(name="log.bytes", title="log written per step, 64 runs of 10", unit="bytes",
         goal=Goal(limit=2048)),
]  # fmt: skip

TAKEOVER = [
    Spec(name="takeover", title="kill -9 to running again, live peer", unit="ms",
         goal=Goal(limit=150), p99=True),
]  # fmt: skip

RESTART = [
    Spec(name="restart", title="store opened to running again, new process", unit="ms",
         goal=Goal(limit=100)),
]  # fmt: skip

IMPORT = [
    Spec(name="import", title="import perdure, over an empty program", unit="ms",
         floor="floor.import", goal=Goal(limit=60)),
    Spec(name="floor.import", title="import asyncio, msgspec, over an empty program", unit="ms"),
    Spec(name="import.cpu", title="import perdure, CPU, over an empty program", unit="ms",
         floor="floor.import.cpu"),
    Spec(name="floor.import.cpu", title="import asyncio, msgspec, CPU", unit="ms"),
]  # fmt: skip

PARTS: dict[str, list[Spec]] = {
    "step": STEP,
    "effect": EFFECT,
    "runs": THROUGHPUT,
    "log": LOG,
    "takeover": TAKEOVER,
    "restart": RESTART,
    "import": IMPORT,
}
"""What `--only` can name."""


def peer_specs(system: str) -> list[Spec]:
    """Return the figures of another system."""
    title = SYSTEMS[system]
    return [
        Spec(name=f"peers.{system}.step.wall", title=f"{title}: step in sequence, time", unit="ms",
             floor="floor.commit"),
        Spec(name=f"peers.{system}.step.cpu", title=f"{title}: step in sequence, CPU", unit="ms"),
        Spec(name=f"peers.{system}.runs.rate", title=f"{title}: 64 runs of 10 steps",
             unit="steps/s", floor="floor.group"),
        Spec(name=f"peers.{system}.runs.cpu", title=f"{title}: 64 runs of 10 steps, CPU per step",
             unit="ms"),
    ]  # fmt: skip
