"""Read what older versions of a graph stored, by the migrations of a newer one. Writes nothing."""

from typing import Any

from msgspec import Raw

from perdure.codec import OldTypes, ValueCodec
from perdure.core import fold
from perdure.core import migration as core
from perdure.core.plan import GraphPlan
from perdure.engine.environment import Environment
from perdure.engine.loading import At, decode_cells
from perdure.engine.starting import result_of
from perdure.errors import MigrationFailed
from perdure.model import records as rec


def state_at(
    engine: Environment, at: At, *, is_read_only: bool = False
) -> tuple[GraphPlan, dict[str, Any], list[rec.TaskSpec]]:
    """Return a plan for the state at a checkpoint, its values as that has them, and what is next.

    `is_read_only`: nobody goes on from there, so what is next does not matter.

    The graph version that wrote it, where it is known here; else the newest that migrations lead
    to from there.

    Raises:
        NotFound: neither is known here.
        MigrationFailed: it can't be brought to the newer version.
    """
    newer = None
    if (at.run.graph, at.version) not in engine.graphs():
        newer = engine.migrating_plan(at.run.graph, at.version)
    if newer is None:
        plan = engine.plan_named(at.run.graph, at.version)
        return plan, engine.decode_cells(at.cells, at.run, at.checkpoint), at.next
    chain = core.chain_of(newer, at.version) or ()
    old = ValueCodec(OldTypes(engine.registry))
    stored = decode_cells(at.cells, old.decode, at.run, at.checkpoint)
    values = core.fitted(newer, core.upgraded(chain, stored))
    specs: list[rec.TaskSpec] = []
    for spec in [] if is_read_only else at.next:
        name = core.node_after(chain, spec.node)
        if name is None or name not in newer.nodes:
            msg = (
                f"at checkpoint {at.checkpoint} of thread {at.run.thread!r} node {spec.node!r} "
                f"comes next, which {newer.name} v{newer.version} does not have"
            )
            raise MigrationFailed(msg, node=spec.node)
        specs.append(fold.renamed(spec, {spec.node: name}))
    return newer, values, specs


def result_at(engine: Environment, graph: str, version: int, raw: Raw) -> Any:
    """Return the final state of an ended run of a version, as a caller gets it.

    Raises:
        NotFound: neither the version is known here, nor one that migrations lead to from it.
        MigrationFailed: it can't be brought to the newer version.
    """
    newer = None
    if (graph, version) not in engine.graphs():
        newer = engine.migrating_plan(graph, version)
    if newer is None:
        plan = engine.plan_named(graph, version or None)
        return result_of(plan, engine.codec.decode(raw))
    chain = core.chain_of(newer, version) or ()
    values = ValueCodec(OldTypes(engine.registry)).decode(raw)
    return result_of(newer, core.fitted(newer, core.upgraded(chain, values)))
