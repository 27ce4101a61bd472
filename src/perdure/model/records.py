"""The journal: one record kind per fact.

A record is encoded as a msgpack array that starts with its number, so the numbers and the order of
the fields are the stored format: fields are only ever added at the end, with a default, and a
number is never used again. A `Raw` field holds one value exactly as the codec encoded it; it is
decoded only when somebody needs it, so that a journal can be read by a process that does not know
the user's types.

Size: one table of all kinds.

Who may write: the holder of the run's lease; `RunStarted` is written by whoever starts the run.
"""

from msgspec import Raw, Struct

from perdure.model.rows import Failure, Wait

NIL = Raw(b"\xc0")
"""The encoded None."""


class TaskSpec(Struct, array_like=True, frozen=True):
    """One node execution that is to come: node, fan-out index (0: none), argument of a fan-out.

    The index says whether there is an argument: a field of type `Raw | None` can't be decoded.
    """

    node: str
    index: int = 0
    argument: Raw = NIL

    @property
    def is_sent(self) -> bool:
        """Whether it is part of a fan-out and has an argument of its own."""
        return self.index > 0


class Rollback(Struct, array_like=True, frozen=True):
    """Why a run puts its thread back: to which checkpoint, who wants it and the reason."""

    checkpoint: int
    by: str
    reason: str = ""


class StatePlace(Struct, array_like=True, frozen=True):
    """Where in a thread's journal a state is: right after record `seq` of its run `ordinal`.

    Reading may begin at the whole copy that is record `copy_seq` of run `copy_ordinal`; 0: there is
    none before the place, it begins with the thread.
    """

    ordinal: int
    seq: int
    copy_ordinal: int = 0
    copy_seq: int = 0


class RunStarted(Struct, array_like=True, frozen=True, tag=1):
    """The run exists. `input`: field that was given -> (op, value).

    `origin_*`, `next` and `snapshot`: a fork goes on with the `next` and the files of that
    checkpoint instead of the graph's first nodes. `rollback`: once the run has taken its input in,
    the thread's state is this input and nothing else, and its files those of `snapshot`.
    `inherits`: a fork begins with the state of `origin_thread` at `origin_checkpoint`, and its
    input is merged into that. `subject`: whom the thread is about, for erasure. `state_at`: where
    in the origin's journal the inherited state is.
    """

    at_us: int
    run_id: str
    tenant: str
    thread: str
    graph: str
    version: int
    input: dict[str, tuple[str, Raw]]
    start_key: str | None = None
    parent: str | None = None
    parent_call: str | None = None
    origin_thread: str | None = None
    origin_checkpoint: int | None = None
    next: list[TaskSpec] | None = None
    snapshot: str | None = None
    rollback: Rollback | None = None
    inherits: bool = False
    subject: str | None = None
    state_at: StatePlace | None = None


class LeaseTaken(Struct, array_like=True, frozen=True, tag=2):
    """A worker took the run over (or took it for the first time).

    The first such record of a run is its anchor: it pins what stood before it on its thread.
    `ordinal`: of this run in the thread; 0: not anchored. `after_run`, `after_seq`, `after_hash`:
    the thread's run before, the seq of its last record, and the hash (hexadecimal) of its last
    frame; empty for the first run of a thread.
    """

    at_us: int
    holder: str
    token: int
    claims: int
    ordinal: int = 0
    after_run: str = ""
    after_seq: int = 0
    after_hash: str = ""


class NodeStarted(Struct, array_like=True, frozen=True, tag=3):
    """A node execution began.

    First attempts that do nothing outside are implied by the step before.
    """

    at_us: int
    task: str
    attempt: int


class NodeFinished(Struct, array_like=True, frozen=True, tag=4):
    """A node execution ended well; `writes`: field -> (op, value); `goto`: targets, if it chose."""

    at_us: int
    task: str
    started_us: int
    writes: dict[str, tuple[str, Raw]]
    attempt: int = 1
    goto: list[TaskSpec] | None = None


class NodeFailed(Struct, array_like=True, frozen=True, tag=5):
    """A node attempt ended with an exception; `retry_at_us` None: it was the last one."""

    at_us: int
    task: str
    attempt: int
    failure: Failure
    retry_at_us: int | None = None


class Passed(Struct, array_like=True, frozen=True):
    """A node execution that went by without a record of its own; its writes are in the step's."""

    task: str
    started_us: int
    ended_us: int
    attempt: int = 1


class StepCommitted(Struct, array_like=True, frozen=True, tag=6):
    """A super-step ended: this record is the checkpoint.

    `scope`: "" for the run's own graph, else the path of the subgraph's task. `folded`: the merged
    value of every field whose reducer is a function. `next`: what runs in the next step; empty: the
    graph has ended. `checkpoint`: id in the thread, for scope ""; `snapshot`: the sandbox snapshot
    it names. `version`: of the subgraph, in the first step of its scope; 0: not told. `merged`: of
    a graph that checkpoints at phases, what the steps since the last checkpoint wrote, this one
    too: field -> (op, value); `passed`: the node executions of these steps, in order.
    """

    at_us: int
    scope: str
    step: int
    checkpoint: int
    folded: dict[str, Raw]
    next: list[TaskSpec]
    snapshot: str | None = None
    version: int = 0
    merged: dict[str, tuple[str, Raw]] = {}
    passed: list[Passed] = []


class EffectIntended(Struct, array_like=True, frozen=True, tag=7):
    """An outside effect is about to be dispatched. `request`: [args, kwargs]."""

    at_us: int
    task: str
    effect_id: str
    name: str
    kind: str
    key: str
    args_digest: str
    request: Raw
    attempt: int = 1
    business_key: str | None = None


class EffectConfirmed(Struct, array_like=True, frozen=True, tag=8):
    """An effect happened.

    `via`: call, reconcile, decision, or key (another run's effect of the same business key).
    """

    at_us: int
    task: str
    effect_id: str
    name: str
    kind: str
    result: Raw
    attempt: int = 1
    via: str = "call"
    by: str = ""


class EffectFailed(Struct, array_like=True, frozen=True, tag=9):
    """An effect attempt is known not to have happened; `retry_at_us` None: it was the last one.

    `via`: call, reconcile, decision, or key (what became of another run's effect of the same
    business key, `by`: this run sent nothing, `attempt` 0).
    """

    at_us: int
    task: str
    effect_id: str
    name: str
    kind: str
    failure: Failure
    attempt: int = 1
    retry_at_us: int | None = None
    via: str = "call"
    by: str = ""


class EffectUncertain(Struct, array_like=True, frozen=True, tag=10):
    """Nobody knows whether an effect happened.

    `retry_at_us`: when it is resent or reconciled; None: a person decides.
    """

    at_us: int
    task: str
    effect_id: str
    name: str
    attempt: int
    failure: Failure
    retry_at_us: int | None = None


class CompensationStarted(Struct, array_like=True, frozen=True, tag=11):
    """The compensation of a confirmed effect is about to be dispatched."""

    at_us: int
    effect_id: str
    name: str
    key: str
    attempt: int = 1


class CompensationEnded(Struct, array_like=True, frozen=True, tag=12):
    """A compensation ended: well where `failure` is None."""

    at_us: int
    effect_id: str
    name: str
    failure: Failure | None = None


class TimerSet(Struct, array_like=True, frozen=True, tag=13):
    """A node sleeps until `due_us`."""

    at_us: int
    task: str
    call_id: str
    due_us: int


class TimerFired(Struct, array_like=True, frozen=True, tag=14):
    """A sleep ended."""

    at_us: int
    task: str
    call_id: str


class Asked(Struct, array_like=True, frozen=True, tag=15):
    """A person was asked."""

    at_us: int
    task: str
    ask_id: str
    question: str
    expires_at_us: int | None = None


class AskAnswered(Struct, array_like=True, frozen=True, tag=16):
    """The answer reached the run; `via`: answer, or default (nobody answered in time)."""

    at_us: int
    task: str
    ask_id: str
    value: Raw
    by: str
    answered_at_us: int
    via: str = "answer"


class AskLapsed(Struct, array_like=True, frozen=True, tag=17):
    """Nobody answered in time."""

    at_us: int
    task: str
    ask_id: str


class ReceiveStarted(Struct, array_like=True, frozen=True, tag=18):
    """A node waits for a signal of a topic."""

    at_us: int
    task: str
    call_id: str
    topic: str
    due_us: int | None = None


class SignalConsumed(Struct, array_like=True, frozen=True, tag=19):
    """A signal reached the node that waited for it."""

    at_us: int
    task: str
    call_id: str
    topic: str
    value: Raw
    sender: str
    sent_at_us: int


class ReceiveLapsed(Struct, array_like=True, frozen=True, tag=20):
    """No signal came in time."""

    at_us: int
    task: str
    call_id: str


class Spawned(Struct, array_like=True, frozen=True, tag=21):
    """A child run was created in the same commit."""

    at_us: int
    task: str
    call_id: str
    child: str
    graph: str


class ChildEnded(Struct, array_like=True, frozen=True, tag=22):
    """A child run ended and the parent knows. `result`: map of its state's fields."""

    at_us: int
    task: str
    call_id: str
    child: str
    status: str
    result: Raw = NIL
    failure: Failure | None = None
    version: int = 0


class Noted(Struct, array_like=True, frozen=True, tag=23):
    """A value that a node read from the world and must read again the same (`ctx.now()`)."""

    at_us: int
    task: str
    call_id: str
    value: Raw


class Emitted(Struct, array_like=True, frozen=True, tag=24):
    """A chunk of the stream. A reader drops the chunks of an older attempt of the same task."""

    at_us: int
    task: str
    attempt: int
    chunk: Raw


class Released(Struct, array_like=True, frozen=True, tag=25):
    """The holder let go of the run; `reason`: waiting, drained, needs_decision."""

    at_us: int
    reason: str
    waits: tuple[Wait, ...] = ()
    failure: Failure | None = None


class CancelRequested(Struct, array_like=True, frozen=True, tag=26):
    """Somebody asked to cancel, and the run knows."""

    at_us: int
    by: str
    compensate: bool


class RunEnded(Struct, array_like=True, frozen=True, tag=27):
    """The run reached a final status."""

    at_us: int
    status: str
    checkpoint: int
    failure: Failure | None = None


class StateSnapshot(Struct, array_like=True, frozen=True, tag=28):
    """The thread's whole state right after a step of scope "", so that loading may start here."""

    at_us: int
    step: int
    checkpoint: int
    values: dict[str, tuple[str, Raw]]
    next: list[TaskSpec]
    snapshot: str | None = None


class SandboxTaken(Struct, array_like=True, frozen=True, tag=29):
    """A snapshot of the sandbox was taken after contained effects of a task.

    Results recorded before it are valid with it. `changes`: what had changed since the one before
    ("nothing": it is that one; "files", "files and processes", ...; empty: not known), in
    `changed_bytes` on the disk.
    """

    at_us: int
    task: str
    snapshot: str
    changes: str = ""
    changed_bytes: int = 0


class RetryRequested(Struct, array_like=True, frozen=True, tag=30):
    """Somebody asked to go on with a run that was parked, and the run knows."""

    at_us: int
    by: str


class ScopeMoved(Struct, array_like=True, frozen=True):
    """What a move changes in one graph under way.

    Attributes:
        nodes: name of a node under way before -> after, where it is another.
        cells: the fields of a subgraph's scope, whole; None: as they are.
        writes: what its nodes have written so far, in order; None: as it is.
        version: of the subgraph from now on; 0: as it is.
    """

    nodes: dict[str, str] = {}
    cells: dict[str, tuple[str, Raw]] | None = None
    writes: list[tuple[str, str, Raw]] | None = None
    version: int = 0


class VersionMoved(Struct, array_like=True, frozen=True, tag=31):
    """The run, and the state that it stands on, goes on with another version of its graph.

    `via`: names (a person decided, and the names fit) or migration. By a migration: `scopes`: by
    path, what changes in the graphs under way; `outcomes`: the updates of node executions of the
    step under way that have ended; `input`: of a run that has not begun, its whole state with its
    input. The fields of one that has begun are in the `StateSnapshot` that follows. A run
    of `to_version` has this record too where the state of its thread was older.
    """

    at_us: int
    by: str
    from_version: int
    to_version: int
    via: str = "names"
    scopes: dict[str, ScopeMoved] = {}
    outcomes: dict[str, dict[str, tuple[str, Raw]]] = {}
    input: dict[str, tuple[str, Raw]] | None = None


class StateCopied(Struct, array_like=True, frozen=True, tag=32):
    """The thread's state, whole, so that loading may start at a place before this record.

    The place is right after record `since_seq` of the thread's run number `since_ordinal`; `step`,
    `checkpoint`, `next` and `snapshot` are those of then. `values`: of a field that is appended to
    what it held then, of all others what they hold now: folding the journal from the place on gives
    the state of now and of all later times, and each appended item is written at most twice.

    `made_at`: the checkpoint that the copy was made at: older ones can't be read by it.
    `lengths`: items in each field that is appended to, now.
    """

    at_us: int
    step: int
    checkpoint: int
    values: dict[str, tuple[str, Raw]]
    next: list[TaskSpec]
    snapshot: str | None
    since_ordinal: int
    since_seq: int
    made_at: int
    lengths: dict[str, int]


Record = (
    RunStarted
    | LeaseTaken
    | NodeStarted
    | NodeFinished
    | NodeFailed
    | StepCommitted
    | EffectIntended
    | EffectConfirmed
    | EffectFailed
    | EffectUncertain
    | CompensationStarted
    | CompensationEnded
    | TimerSet
    | TimerFired
    | Asked
    | AskAnswered
    | AskLapsed
    | ReceiveStarted
    | SignalConsumed
    | ReceiveLapsed
    | Spawned
    | ChildEnded
    | Noted
    | Emitted
    | Released
    | CancelRequested
    | RunEnded
    | StateSnapshot
    | StateCopied
    | SandboxTaken
    | RetryRequested
    | VersionMoved
)
