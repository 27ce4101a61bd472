"""Identity of what a node does: stable over attempts, restarts and the order of awaits.

An act is named by the run, the path of the node execution, its kind and name, the digest of its
canonical arguments, and how many equal ones came before it in that execution. Two acts that differ
in nothing are interchangeable, so the count is all that tells them apart.
"""

from hashlib import sha256

from perdure.ids import AskId, EffectId

_HEX_DIGITS = 32  # 128 bits


def digest_of(canonical: bytes) -> str:
    """Return the digest of canonical bytes: 32 hexadecimal digits."""
    return sha256(canonical).hexdigest()[:_HEX_DIGITS]


def call_id(run_id: str, task: str, *, kind: str, name: str, digest: str, nth: int) -> str:
    """Return the identity of the nth (from 0) equal act of a node execution.

    32 hexadecimal digits.
    """
    # A zero byte can't be in any of the parts (names are checked), so no two lists of parts
    # collide.
    text = f"{run_id}\0{task}\0{kind}\0{name}\0{digest}\0{nth}"
    return sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


def effect_id(identity: str) -> EffectId:
    """Return the id under which an effect of this identity is kept in the ledger."""
    return EffectId(f"e_{identity}")


def ask_id(identity: str) -> AskId:
    """Return the id under which a question of this identity is kept."""
    return AskId(f"a_{identity}")


def task_path(scope: str, step: int, node: str, index: int) -> str:
    """Return the path of a node execution; `index` 0 means that it is no fan-out."""
    tail = f"{step}:{node}#{index}" if index else f"{step}:{node}"
    return f"{scope}/{tail}" if scope else tail


def step_of(task: str) -> int:
    """Return the number of the step that a task is of, in its scope."""
    return int(task.rpartition("/")[2].partition(":")[0])


def node_of(task: str) -> str:
    """Return the name of the node that a task executes."""
    return task.rpartition("/")[2].partition(":")[2].partition("#")[0]


def scope_of(task: str) -> str:
    """Return the scope that a task belongs to: "" for the run's own graph."""
    return task.rpartition("/")[0]
