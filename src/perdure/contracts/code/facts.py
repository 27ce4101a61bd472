"""What is known of the Python code that one service starts.

Everything here is reachable from the service's start command unless it says otherwise, and every
fact carries its lines. The reader gets a `Start`, the environment and the sources of a service,
and reads with `ast` only.
"""

from enum import StrEnum

from msgspec import Struct, field

from perdure.contracts.evidence import Evidence, Known


class Medium(StrEnum):
    """Where state lives."""

    MEMORY = "memory"
    FILE = "file"
    """SQLite or other files; `location` is the path."""
    POSTGRES = "postgres"
    REDIS = "redis"
    MONGO = "mongo"
    NETWORK = "network"
    """Another service over the network."""
    PLATFORM = "platform"
    """The server the graph is deployed on provides it (langgraph-api, aegra)."""
    NONE = "none"
    """Compiled without a saver."""
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What kind of state it is."""

    SAVER = "saver"
    """Checkpoints of threads."""
    STORE = "store"
    """Memories across threads."""
    HISTORY = "history"
    """Conversations that the project keeps itself (a global dict, tables of its own)."""
    PAUSED = "paused"
    """Runs that wait for a person, kept by the project itself."""


class Site(Struct, frozen=True, kw_only=True):
    """A place where the code makes or chooses where state lives."""

    role: Role
    medium: Medium
    evidence: tuple[Evidence, ...]
    """From the start command to the constructor, as far as needed to be believed."""
    class_name: str | None = None
    location: Known[str] | None = None
    """Path (as the process sees it, relative to its folder) or URL without password."""
    is_served: bool | None = True
    """Bound to a graph that the service serves; `None`: not proved either way."""
    chosen: Known[bool] = field(default_factory=lambda: Known(value=True))
    """Whether this branch is the one taken, with the conditions as evidence; a question if open."""
    survives_process: bool | None = None
    pauses: bool = False
    """Runs of its graph are told to wait for a person."""
    is_entered: bool = True
    """False: a context manager that nobody was seen to enter, so that it can't work."""
    needs_modules: bool = False
    """Its library searches in Redis: without RediSearch and RedisJSON it can't be set up."""
    is_too_early: bool = False
    """A graph without a saver, as it is made before the saver that it is meant to get."""
    stays: bool = False
    """Another saver is for all graphs, and this one keeps its graph from getting it."""


class Degrade(Struct, frozen=True, kw_only=True):
    """Code that goes on with weaker storage when the durable one fails or is not configured."""

    evidence: tuple[Evidence, ...]
    becomes: Medium
    when: Known[bool] = field(default_factory=lambda: Known(value=True))
    """Whether settings let it come to this here; a question if they are open."""
    cause: str
    """`failed` (an exception is swallowed), `unset` (no durable one is configured), `misuse` (a
    context manager never entered, a name that does not exist)."""
    made: Evidence | None = None
    """Where the durable one is made whose failure is swallowed."""
    sets_up: bool = False
    """What is tried there surely asks the database for what the durable one needs of it, and all
    that it answers is swallowed."""


ARQ_WAITS = "what arq waits for its jobs"
"""What a drain is of, where a worker of arq has `job_completion_wait`."""


class Drain(Struct, frozen=True, kw_only=True):
    """How long the code takes to finish what runs after SIGTERM."""

    seconds: Known[float]
    """Value `None` without a question: unbounded."""
    what: str


class Migration(Struct, frozen=True, kw_only=True):
    """Code on the way to serving that needs a database to be there."""

    evidence: tuple[Evidence, ...]
    medium: Medium
    location: Known[str] | None
    retries: tuple[Evidence, ...] = ()
    """What repeats or waits when the database is not there yet."""
    is_lazy: bool = False
    """Only with the first request."""
    server: str | None = None
    """The search engine or vector database, as its images are called; `None`: by the medium."""
    is_passed_over: bool = False
    """An error there is told, and the start goes on."""


class Lease(Struct, frozen=True, kw_only=True):
    """Something outside that is taken and must be given back."""

    what: str
    evidence: tuple[Evidence, ...]
    expires: bool | None
    """Whether it ends by itself; `None`: a library decides that we don't know."""
    when: Known[bool] = field(default_factory=lambda: Known(value=True))
    """Whether settings let it be taken here; a question if they are open."""
    release: tuple[Evidence, ...] = ()
    is_reaped: bool = False
    """A start of the service gives back what an earlier one left."""
    cleaned: tuple[Evidence, ...] = ()
    """Where a start comes to code that gives such things back; whether all of them is not known."""


class Hint(Struct, frozen=True, kw_only=True):
    """Something that only execution can judge, for R6, R7, R8, C2."""

    contract: str
    text: str
    evidence: tuple[Evidence, ...]


class CodeFacts(Struct, frozen=True, kw_only=True):
    """All of it, for one service."""

    entry: tuple[Evidence, ...]
    """How the start command leads to the first file; empty: not found."""
    question: str | None = None
    """Why nothing is known, if so."""
    sites: tuple[Site, ...] = ()
    uses_threads: tuple[Evidence, ...] = ()
    """thread_id is sent, interrupt is used, a store is written: what makes S1 to S3 apply."""
    resumed: tuple[Evidence, ...] = ()
    """Where a paused run is told to go on by another request than the one that began it."""
    has_steps: tuple[Evidence, ...] = ()
    """A graph with several nodes or a loop, served: what makes R3 apply."""
    outlives: tuple[Evidence, ...] = ()
    """A run that goes on without a request that waits for it, as far as one was seen."""
    outlives_surely: tuple[Evidence, ...] = ()
    """Such a run that is surely not waited for, nor writes down what its steps give."""
    outlives_open: bool = False
    """Which graph that is, if it is one, is not told."""
    own_steps: tuple[Evidence, ...] = ()
    """Where code writes steps down itself, and where it goes on from them."""
    unsaved: tuple[Evidence, ...] = ()
    """A graph without a saver, and its run with a thread, beside graphs that have one."""
    bare_run: tuple[Evidence, ...] = ()
    """Graphs that surely have no saver, what begins a run of one, and the run."""
    crew_run: tuple[Evidence, ...] = ()
    """A crew of several tasks, what begins it, and where it is run to its end."""
    crew_question: str | None = None
    """What is open of that crew, if something is."""
    durability: Known[str] | None = None
    """`sync`, `async`, `exit`."""
    degrades: tuple[Degrade, ...] = ()
    drains: tuple[Drain, ...] = ()
    handlers: tuple[Evidence, ...] = ()
    """SIGTERM handlers, and servers that install them."""
    unhandled: tuple[Evidence, ...] = ()
    """Where the program waits for ever, if all that it imports is known to handle no SIGTERM."""
    reloads: tuple[Evidence, ...] = ()
    workers: Known[int] | None = None
    """Server processes that the code itself asks for."""
    migrations: tuple[Migration, ...] = ()
    leases: tuple[Lease, ...] = ()
    hints: tuple[Hint, ...] = ()
    resumes: tuple[Evidence, ...] = ()
    """What takes interrupted runs up again at a start."""
    unread: tuple[Evidence, ...] = ()
    """Files that are reached and were not read, as they are written for a newer Python."""
    unread_matters: frozenset[str] | None = None
    """The contracts that these could matter to, by what stands in them; `None`: any."""
    unreachable: tuple[Site, ...] = ()
    """Sites of the project that the start command never reaches; for explanations."""
