"""Trees, steps, effects and decisions in words."""

from collections.abc import Iterable, Iterator

from perdure.cli._text import clean, compact, full_time, indented
from perdure.engine.patch import Edit
from perdure.engine.story import Decision, EffectSeen, NodeRun, StepRun, Story
from perdure.engine.tree import ForkSeen, ThreadTree

_DECIDED = {
    "answer": "answered",
    "default": "nobody answered in time, the default stands:",
    "expired": "nobody answered in time",
    "happened": "decided that it happened:",
    "not_happened": "decided that it did not happen",
}


def tree_lines(tree: ThreadTree, indent: str = "") -> Iterator[str]:
    """Yield a thread with its runs, steps and forks, oldest first."""
    origin = tree.origin
    where = f", forked from {origin.thread}@{origin.checkpoint}" if origin is not None else ""
    yield indented(f"{indent}thread {tree.thread}{where}")
    forks = list(tree.forks)
    tags: dict[int, list[str]] = {}
    for tag in tree.tags:
        tags.setdefault(tag.checkpoint, []).append(tag.name)
    for story in tree.runs:
        yield from _run_lines(story, forks, tags, f"{indent}  ")
    for fork in forks:  # of a checkpoint that is not there any more
        yield from _fork_lines(fork, f"{indent}  ")


def _run_lines(
    story: Story, forks: list[ForkSeen], tags: dict[int, list[str]], indent: str
) -> Iterator[str]:
    row = story.row
    yield indented(f"{indent}run {row.run_id}, {row.graph} v{row.version}, {row.status.value}")
    if story.rolled is not None:
        why = f": {story.rolled.reason}" if story.rolled.reason else ""
        back = f"rolled back to checkpoint {story.rolled.checkpoint} by {story.rolled.by}{why}"
        yield indented(f"{indent}  {back}")
    for step in story.steps:
        yield from step_lines(step, f"{indent}  ")
        names = tags.get(step.checkpoint or 0, [])
        if names:
            yield indented(f"{indent}    tagged {', '.join(names)}")
        here = [fork for fork in forks if fork.checkpoint == step.checkpoint]
        for fork in here:
            forks.remove(fork)
            yield from _fork_lines(fork, f"{indent}    ")
    if story.under_way and not row.status.is_final:
        yield f"{indent}  under way:"
        yield from _node_lines(story.under_way, f"{indent}    ")


def _fork_lines(fork: ForkSeen, indent: str) -> Iterator[str]:
    yield indented(f"{indent}forked at checkpoint {fork.checkpoint}:")
    if fork.tree is not None:
        yield from tree_lines(fork.tree, f"{indent}  ")
    else:
        yield indented(f"{indent}  thread {fork.row.thread} (run {fork.row.run_id})")


def step_lines(step: StepRun, indent: str) -> Iterator[str]:
    """Yield a step, with what ran in it where that says more than the step itself."""
    name = f"checkpoint {step.checkpoint}" if step.checkpoint is not None else f"step {step.step}"
    ran = ", ".join(_node_name(node) for node in step.nodes) or "input"
    parts = [f"{name}: {ran}"]
    parts += [f"changed {', '.join(step.changed)}"] if step.changed else []
    parts.append(f"next {', '.join(step.next) or '(end)'}" if step.at is not None else "under way")
    if step.at is not None and step.checkpoint is not None:
        parts.append(f"{full_time(step.at)} UTC")
    yield indented(f"{indent}{'; '.join(parts)}")
    if len(step.nodes) > 1 or any(_says_more(node) for node in step.nodes):
        yield from _node_lines(step.nodes, f"{indent}    ")


def _says_more(node: NodeRun) -> bool:
    return bool(node.steps) or node.attempts > 1 or not node.is_finished


def _node_lines(nodes: Iterable[NodeRun], indent: str) -> Iterator[str]:
    for node in nodes:
        parts = [_node_name(node)]
        parts += [f"attempt {node.attempts}"] if node.attempts > 1 else []
        if node.failure is not None:
            parts.append(f"failed: {node.failure.type}: {node.failure.message}")
        elif not node.is_finished:
            parts.append("no outcome yet")
        elif node.changed:
            parts.append(f"changed {', '.join(node.changed)}")
        yield indented(f"{indent}{'; '.join(parts)}")
        for step in node.steps:
            yield from step_lines(step, f"{indent}  ")


def _node_name(node: NodeRun) -> str:
    return f"{node.node}#{node.index}" if node.index else node.node


def effect_line(effect: EffectSeen) -> str:
    """Return an effect as one line."""
    given = "" if effect.args is None else compact(effect.args, 120)[1:-1]
    named = [f"{name}={compact(value, 60)}" for name, value in (effect.kwargs or {}).items()]
    call = f"{effect.name}({', '.join([*([given] if given else []), *named])})"
    key = f", key {effect.business_key or effect.key}" if effect.key else ""
    result = f" -> {compact(effect.result, 80)}" if effect.state == "confirmed" else ""
    words = f"{call}: {effect.state}{result}, kind {effect.kind}{key}"
    return clean(f"{words}, in {effect.node} of {effect.run_id} [{effect.id}]")


def decision_line(decision: Decision) -> str:
    """Return a decision as one line."""
    has_value = decision.kind in {"answer", "default", "happened"}
    value = f" {compact(decision.value, 120)}" if has_value else ""
    by = f" by {decision.by}" if decision.by and decision.kind != "default" else ""
    return clean(f"{decision.about}: {_DECIDED[decision.kind]}{value}{by} [{decision.id}]")


def edit_line(edit: Edit) -> str:
    """Return a change of the state as one line."""
    path = edit.path or "/"
    if edit.op == "add":
        return clean(f"+ {path}: {compact(edit.new, 200)}")
    if edit.op == "remove":
        return clean(f"- {path}: {compact(edit.old, 200)}")
    if edit.differing is not None:
        what = f"{edit.differing:,} of {edit.new.count:,} elements differ"
        return clean(f"~ {path}: {what} ({compact(edit.new, 200)})")
    return clean(f"~ {path}: {compact(edit.old, 200)} -> {compact(edit.new, 200)}")
