"""`worker`: executes runs until it is told to stop."""

import asyncio
import logging
import os
import sys
from typing import Annotated, Any

import typer

from perdure.cli import _shapes as shapes
from perdure.cli._executing import Interrupts, drain, log_to_stderr
from perdure.cli._options import (
    SandboxDurable,
    SandboxExport,
    SandboxKeys,
    SandboxRoot,
    StoreUrl,
    await_,
)
from perdure.cli._output import note, print_json, say, table
from perdure.cli._reading import refuse_given
from perdure.cli._sandbox import SandboxTerms
from perdure.cli._store import DEFAULT_URL, check_shared, creating
from perdure.cli._targets import load_target
from perdure.cli._text import plural
from perdure.cli._worker_log import tell_of_ends, told_store
from perdure.cli.limits import PORT_MAX, STUBBORN_S
from perdure.clock import system_services
from perdure.engine import Runtime, WorkerSettings
from perdure.engine.environment import Environment
from perdure.engine.health import HealthServer
from perdure.engine.limits import CONCURRENCY, DRAIN_WINDOW_S, HEARTBEAT_S, LEASE_TTL_S
from perdure.engine.shapes import shapes_of
from perdure.engine.worker import Worker
from perdure.errors import SettingInvalid
from perdure.store import make_store, shown_url

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET...",
        help="Graphs to execute: path/to/file.py:graph or package.module:graph.",
    ),
]
Concurrency = Annotated[
    int,
    typer.Option(
        "--concurrency",
        envvar="PERDURE_CONCURRENCY",
        metavar="N",
        help="Runs executed at once.",
    ),
]
LeaseTtl = Annotated[
    float,
    typer.Option(
        "--lease-ttl",
        envvar="PERDURE_LEASE_TTL",
        metavar="SECONDS",
        help="How long a lease lasts unrenewed.",
    ),
]
DrainWindow = Annotated[
    float,
    typer.Option(
        "--drain-window",
        envvar="PERDURE_DRAIN_WINDOW",
        metavar="SECONDS",
        help="How long a drain lets nodes reach a boundary.",
    ),
]
Health = Annotated[
    str | None,
    typer.Option(
        "--health",
        envvar="PERDURE_HEALTH",
        metavar="[HOST:]PORT",
        help="Answer /livez and /readyz there (host: 127.0.0.1).",
    ),
]


def worker(
    *,
    targets: Targets,
    store: StoreUrl = DEFAULT_URL,
    concurrency: Concurrency = CONCURRENCY,
    lease_ttl: LeaseTtl = LEASE_TTL_S,
    drain_window: DrainWindow = DRAIN_WINDOW_S,
    health: Health = None,
    sandbox: SandboxRoot = None,
    sandbox_export: SandboxExport = None,
    sandbox_keys: SandboxKeys = None,
    sandbox_durable: SandboxDurable = False,
    versions: Annotated[
        bool, typer.Option("--versions", help="Print what it would execute, and exit.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Log warnings only, not every run.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --versions: print one JSON object.")
    ] = False,
) -> None:
    r"""Execute runs of these graphs until SIGTERM or SIGINT; then drain and exit with 0.

    Draining stops claiming, lets nodes reach their next boundary and releases the leases; a second
    signal hurries. Prints one line to stdout when it is ready, and logs to stderr each run that it
    takes, and how that ends.

    \b
    Examples:
      perdure worker refunds.py:graph
      perdure worker shop.refunds:graph shop.orders:graph --store sqlite:////var/lib/shop.db
      perdure worker refunds.py:graph --concurrency 16 --lease-ttl 30 --drain-window 25
      perdure worker refunds.py:graph --health 0.0.0.0:8080
      perdure worker agent.py:graph --sandbox /var/lib/agents
      perdure worker agent.py:graph --sandbox /var/lib/agents --sandbox-durable \
        --sandbox-export file:///mnt/exports --sandbox-keys file:/etc/perdure/keys
      perdure worker refunds.py:graph --versions --json
    """
    if versions:
        _print_versions([load_target(target) for target in targets], as_json=as_json)
        return
    refuse_given("worker prints JSON of --versions only", {"--json": as_json})
    log_to_stderr(logging.WARNING if quiet else logging.INFO)
    check_shared(store)
    if concurrency < 1 or lease_ttl <= 0 or drain_window < 0:
        msg = (
            "worker: --concurrency must be 1 or more, --lease-ttl above 0, --drain-window from 0 on"
        )
        raise SettingInvalid(msg)
    settings = WorkerSettings(
        concurrency=concurrency,
        lease_ttl_s=lease_ttl,
        heartbeat_s=min(HEARTBEAT_S, lease_ttl / 3),
        drain_window_s=drain_window,
    )
    address = None if health is None else address_of(health)
    terms = SandboxTerms(
        folder=sandbox, export=sandbox_export, keys=sandbox_keys, is_durable=sandbox_durable
    )
    await_(_work(targets, store, settings, address, sandbox=terms))


def _print_versions(graphs: list[Any], *, as_json: bool) -> None:
    engine = Environment(make_store("memory://", system_services()), system_services())
    engine.register(graphs)
    shapes_known = sorted(shapes_of(engine), key=lambda shape: (shape.name, shape.version))
    if as_json:
        print_json({"graphs": [shapes.shape_json(shape) for shape in shapes_known]})
        return
    rows = [(shape.name, f"v{shape.version}", ", ".join(shape.nodes)) for shape in shapes_known]
    table(("graph", "version", "nodes"), rows)


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `:PORT` or `PORT`; without a host this machine only.

    Raises:
        SettingInvalid: there is no port in it.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        msg = f"--health {text!r}: write HOST:PORT, e.g. 127.0.0.1:8080, or a port alone"
        raise SettingInvalid(msg)
    return host.strip("[]") or "127.0.0.1", int(port)


async def _work(
    targets: list[str],
    url: str,
    settings: WorkerSettings,
    health: tuple[str, int] | None,
    *,
    sandbox: SandboxTerms,
) -> None:
    interrupts = Interrupts()
    interrupts.watch()
    graphs = [load_target(target) for target in targets]
    backend = await sandbox.open()
    async with creating(told_store(url), graphs, worker=settings, sandbox=backend) as runtime:
        tell_of_ends(runtime)
        executing = runtime.worker
        if executing is None:
            return
        server = await _healthy(runtime, executing, health)
        known = ", ".join(f"{name} v{version}" for name, version in sorted(runtime.engine.graphs()))
        say(f"ready: worker {executing.worker_id} executes {known} on {shown_url(url)}")
        await interrupts.first.wait()
        note(f"draining {plural(executing.held, 'run')} (a second signal stops at once)")
        try:
            await drain(runtime, interrupts)
        finally:
            if server is not None:
                await server.stop()
    note("drained; every lease is released")
    await _leave_stubborn()


async def _healthy(
    runtime: Runtime, executing: Worker, address: tuple[str, int] | None
) -> HealthServer | None:
    """Begin to answer health requests, where they are wanted."""
    if address is None:
        return None
    host, port = address
    clock = runtime.engine.services.clock
    server = HealthServer(executing.vitals, clock, host=host, port=port)
    port = await server.start()
    note(f"health: http://{f'[{host}]' if ':' in host else host}:{port}/readyz and /livez")
    return server


async def _leave_stubborn() -> None:
    """End the process where nodes swallow their cancellation: waiting for them would be for ever.

    Their leases are released and the store is closed, so nothing can be lost.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    still = (await asyncio.wait(others, timeout=STUBBORN_S))[1] if others else set()
    if still:
        note(f"{plural(len(still), 'task')} did not end when cancelled; left behind")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
