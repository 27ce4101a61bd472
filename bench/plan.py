"""What is measured: the figures, their floors and their goals."""

from dataclasses import replace

from bench.figures import Goal, Spec
from bench.peers import ON_POSTGRES, SYSTEMS

DELAY_MS = 2.0
"""The sleep after each commit that stands for a slow disk."""

SLOW = ".slow"
"""Ends the names of what was measured with that sleep."""

TTL_S = 2.0
"""The leases of workers whose host is lost: the usual 15 s would only make the wait longer."""

POSTGRES = "postgres."
"""Begins the names of what was measured on PostgreSQL."""


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

# ---- the same on PostgreSQL ----------------------------------------------------------------------


def _on_postgres(spec: Spec) -> Spec:
    """Return the figure of a server, held against the floor on that server."""
    floor = None if spec.floor is None else POSTGRES + spec.floor
    title = f"PostgreSQL: {spec.title}"
    return replace(spec, name=POSTGRES + spec.name, title=title, floor=floor)


POSTGRES_FLOORS = [
    _on_postgres(spec) for spec in FLOORS if spec.name.startswith(("floor.commit", "floor.group"))
]

POSTGRES_PARTS: dict[str, list[Spec]] = {
    POSTGRES + part: [_on_postgres(spec) for spec in specs]
    for part, specs in {
        "step": [
            *_both(Spec(name="step.wall", title="step in sequence, time", unit="ms",
                        floor="floor.commit"), None),
            *_both(Spec(name="step.cpu", title="step in sequence, CPU", unit="ms",
                        goal=Goal(limit=0.06)), Goal(limit=0.06)),
            Spec(name="step.disk", title="step in sequence, slow disk over quick one", unit="x",
                 goal=Goal(limit=1.5)),
            Spec(name="step.server", title="step in sequence, CPU of the server", unit="ms"),
        ],
        "effect": [
            *_both(Spec(name="effect.wall", title="step with a keyed effect, time", unit="ms",
                        floor="floor.commit", goal=Goal(limit=3.0, of_ratio=True)),
                   Goal(limit=2.2, of_ratio=True)),
            *_both(Spec(name="effect.cpu", title="step with a keyed effect, CPU", unit="ms"), None),
            Spec(name="effect.server", title="step with a keyed effect, CPU of the server",
                 unit="ms"),
        ],
        "runs": [
            *_both(Spec(name="runs.rate", title="64 runs of 10 steps at once", unit="steps/s",
                        floor="floor.group", goal=Goal(limit=12_000, at_least=True)), None),
            *_both(Spec(name="runs.cpu", title="64 runs of 10 steps, CPU per step", unit="ms"),
                   None),
            Spec(name="runs.server", title="64 runs of 10 steps, CPU of the server per step",
                 unit="ms"),
        ],
        "log": [
            Spec(name="log.bytes", title="log written per step, 64 runs of 10", unit="bytes",
                 goal=Goal(limit=1024)),
            Spec(name="log.pages", title="the same right after a checkpoint", unit="bytes"),
            Spec(name="log.sequence", title="log written per step in sequence", unit="bytes"),
            Spec(name="log.effect", title="log written per step with a keyed effect",
                 unit="bytes"),
        ],
        "takeover": TAKEOVER,
        "lost": [
            Spec(name="lost", title=f"host lost to running again, leases of {TTL_S:g} s", unit="ms",
                 goal=Goal(limit=(TTL_S + 1) * 1000)),
        ],
        "restart": RESTART,
        "import": [
            Spec(name="import", title="import of the store and driver, over perdure", unit="ms"),
            Spec(name="import.cpu", title="the same, CPU", unit="ms"),
        ],
    }.items()
}  # fmt: skip

PARTS: dict[str, list[Spec]] = {
    "step": STEP,
    "effect": EFFECT,
    "runs": THROUGHPUT,
    "log": LOG,
    "takeover": TAKEOVER,
    "restart": RESTART,
    "import": IMPORT,
    **POSTGRES_PARTS,
}

GROUPS: dict[str, list[str]] = {
    "sqlite": [part for part in PARTS if part not in POSTGRES_PARTS],
    "postgres": list(POSTGRES_PARTS),
}
"""Several parts under one name. `--only` can name both."""


def peer_specs(system: str) -> list[Spec]:
    """Return the figures of another system."""
    title = SYSTEMS[system]
    place = POSTGRES if system in ON_POSTGRES else ""
    specs = [
        Spec(name=f"peers.{system}.step.wall", title=f"{title}: step in sequence, time", unit="ms",
             floor=f"{place}floor.commit"),
        Spec(name=f"peers.{system}.step.cpu", title=f"{title}: step in sequence, CPU", unit="ms"),
        Spec(name=f"peers.{system}.runs.rate", title=f"{title}: 64 runs of 10 steps",
             unit="steps/s", floor=f"{place}floor.group"),
        Spec(name=f"peers.{system}.runs.cpu", title=f"{title}: 64 runs of 10 steps, CPU per step",
             unit="ms"),
    ]  # fmt: skip
    if place:
        name = f"peers.{system}.runs.server"
        what = f"{title}: 64 runs of 10 steps, CPU of the server per step"
        specs.append(Spec(name=name, title=what, unit="ms"))
    return specs
