"""What each contract means: one text for `--explain` and for docs/contracts.md."""

from msgspec import Struct

from perdure.contracts.findings import Contract
from perdure.contracts.report._titles import TITLES


class Explained(Struct, frozen=True, kw_only=True):
    """A contract for somebody who has never read the source."""

    why: str
    applies: str
    violated: tuple[str, ...]
    held: tuple[str, ...]
    mend: str
    proof: str
    """What `perdure inject` does, and what it looks at."""
    open_when: str = ""
    limits: str = ""


EXPLAINED: dict[Contract, Explained] = {
    Contract.S0: Explained(
        why=(
            "A service that can't reach its database at a start and quietly goes on with a saver "
            "in "
            "memory looks healthy and loses every thread with the next restart."
        ),
        applies="the code builds a durable saver inside `try` or `if`",
        violated=(
            "the handler goes on with no saver, with one in memory, or with a weaker store",
            (
                "the result of `X.from_conn_string(...)` is used as a saver without `with`: it is"
                " a context manager"
            ),
            "a saver is imported by a name that its package does not have",
        ),
        held=("the handler raises again, ends the process, or turns readiness red",),
        mend="Let the start fail, or let readiness fail while threads are not durable.",
        proof=(
            "The database refuses connections at a start; the service must not say that it is "
            "ready."
        ),
        limits=(
            "A branch that is taken when nothing durable is configured is told apart from one "
            "taken when it fails."
        ),
    ),
    Contract.S1: Explained(
        why=(
            "Platforms restart containers when a health check fails, memory runs out or a process "
            "crashes. What an agent remembers must be there afterwards."
        ),
        applies="a served graph gets thread ids, pauses for people, or keeps memories",
        violated=(
            (
                "the saver or store of a served graph is in memory (`InMemorySaver`, "
                "`MemorySaver`, `InMemoryStore`, `:memory:`, a global dict)"
            ),
            "it writes a file on a tmpfs",
            "threads are used, and the graph is compiled without a checkpointer",
            (
                "a run waits for a person on an event, a future or a queue of the process, which "
                "another request sets: also beside a durable saver"
            ),
        ),
        held=("it writes to a database, or to a file that the container's own layer keeps",),
        open_when="a setting that no file declares decides which saver it is",
        mend="Bind a durable saver, and point it at a database that this deployment runs.",
        proof=(
            "Stop and start the container; threads, paused runs and memories are there by id and "
            "checkpoint id."
        ),
    ),
    Contract.S2: Explained(
        why=(
            "Every deploy removes the container and makes another one. What is in the container's "
            "own layer goes with it, without a word."
        ),
        applies="as S1",
        violated=(
            "S1 is violated",
            (
                "the file of the saver is in the container's own layer, an `emptyDir`, a tmpfs or"
                " an anonymous volume"
            ),
            (
                "the database of the deployment has no volume on its folder of data (PostgreSQL "
                "18 and later: /var/lib/postgresql)"
            ),
        ),
        held=(
            "the file is on a named volume, a bind mount or a claim",
            "the database keeps its data on one, or is outside this deployment",
        ),
        open_when="only a Dockerfile is there: who runs the image decides what is mounted",
        mend="Mount a named volume on the folder of the file, or use a database.",
        proof=(
            "Remove the container (down and up, as a fresh deploy does) and make another; look as"
            " for S1."
        ),
    ),
    Contract.S3: Explained(
        why=(
            "With two replicas, or two workers in one container, the next request meets the other"
            " one."
        ),
        applies=(
            "more than one replica, an autoscaler's maximum above one, several workers, or twin "
            "services"
        ),
        violated=(
            "state is in the memory of a process",
            "state is a file that is not the same file for all replicas",
            "SQLite is on a file system of the network, whose locks it can't trust",
        ),
        held=(
            "state is in a database that all reach over the network",
            (
                "all workers of a container, or all replicas of one host, open the same file "
                "(with a warning: one writes, the others wait)"
            ),
        ),
        mend="Use a database over the network; until then run one replica with one worker.",
        proof="Scale to two; a thread that one replica wrote is read through the other.",
    ),
    Contract.S4: Explained(
        why=(
            "A database takes seconds to come up. A service that changes its tables before that "
            "fails at the start."
        ),
        applies=(
            "the start creates or changes tables, indexes, collections or schemas of a database "
            "or search engine in the same deployment"
        ),
        violated=(
            (
                "the service waits for nothing, or only until the database's container has "
                "started, and nothing repeats the attempt"
            ),
            "it waits for `service_healthy` of a database that has no health check",
        ),
        held=(
            (
                "it waits for `service_healthy` with a health check, for a job that has "
                "succeeded, or in an init container"
            ),
            "the start repeats the attempt, or waits in a loop that ends",
        ),
        mend=(
            "depends_on with condition: service_healthy and a health check; repeat the attempt in"
            " code as well."
        ),
        proof=(
            "The database starts late; the service becomes ready without anybody's help, with "
            "restarts off."
        ),
        limits=(
            "Swarm and a host's reboot ignore depends_on: repeating in code is the stronger way. "
            "A restart policy is not counted as repeating: until the database is there the "
            "container crash-loops, and it stays down where the tries are limited. The report "
            "says so where there is one."
        ),
    ),
    Contract.R1: Explained(
        why="A stop sends SIGTERM, waits, and kills. What needs longer than the wait is cut off.",
        applies="the time that the service takes to finish what is under way is known",
        violated=("it takes longer than the grace, less what a preStop hook takes",),
        held=("the grace is longer (with a warning where it is less than 5 s longer)",),
        open_when="nothing bounds it, or R2 is violated: then nothing drains at all",
        mend=(
            "Raise stop_grace_period or terminationGracePeriodSeconds, or let the drain take less."
        ),
        proof=(
            "Stop the container during work that lasts one second less than the drain; it ends by"
            " itself, and no acknowledged step is lost."
        ),
        limits=(
            "Known: langgraph-api 180 s (BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS), langgraph dev 5 s, "
            "gunicorn 30 s, hypercorn 3 s, "
            "uvicorn without a limit waits for ever; grace: Compose 10 s, Kubernetes 30 s."
        ),
    ),
    Contract.R2: Explained(
        why=(
            "SIGTERM goes to process 1 of the container. A shell there does not pass it on, so "
            "that the "
            "server never learns of the stop and is killed with all that it does."
        ),
        applies="the service runs on",
        violated=(
            (
                '`CMD cmd` (shell form) or `["sh", "-c", "cmd"]` without `exec`, where /bin/sh is '
                "dash (Debian, Ubuntu, python:*-slim)"
            ),
            "a script whose last command has no `exec`",
            "a server in an `if`, a `case` or braces of `-c`: no shell replaces itself there",
            "`a & b` in a shell",
            "a Python program as process 1 that has no handler: the kernel ignores SIGTERM for it",
            "a Python program that starts the server by `subprocess` and waits",
            "a stop signal that the server does not handle",
            (
                "a script that traps TERM, kills its children and ends without waiting for them: "
                "they see SIGTERM and are cut off"
            ),
            (
                "any of these behind tini, dumb-init or `init: true`: it stops fast, and still "
                "nothing drains"
            ),
        ),
        held=(
            "the server itself is process 1 (exec form, or `exec` in every shell on the way)",
            "`bash -c` with the server as its last command: bash executes it in its place",
            (
                "a script that traps TERM, passes it on and waits: in the handler, or once more "
                "after the `wait` that the signal ended"
            ),
            "`uv run`, `uvx` and `timeout` pass it on",
        ),
        open_when=(
            "the image's own entry point or its /bin/sh is not known (Alpine's ash, npm, "
            "supervisord)"
        ),
        mend="Write the command in exec form, or put `exec` before the last command.",
        proof="Stop the container; the application's own log or endpoint says that it saw SIGTERM.",
        limits="A string `command:` in Compose is split into words: that is no shell.",
    ),
    Contract.R3: Explained(
        why="A run of many steps that saves nothing until its end begins anew after a crash.",
        applies="a served graph has several nodes or a loop",
        violated=(
            "it is compiled without a checkpointer (asked where its code keeps steps itself)",
            (
                "a saver in memory, or a crew of several tasks that tells of none, where surely no "
                "request waits for the run"
            ),
            "a saver in memory, where runs wait for a person: they go on in another request",
            '`durability="exit"` or `checkpoint_during=False`',
            "checkpoints are switched off by default",
        ),
        held=("a durable saver is bound, and it saves at every step",),
        mend='Pass a durable saver; `durability="sync"` where steps have effects.',
        proof=(
            "SIGKILL after step k of n; after the restart step k (sync) or k-1 (async) is stored."
        ),
    ),
    Contract.R4: Explained(
        why="A process that crashes at night stays down unless somebody starts it again.",
        applies="a service that runs on",
        violated=(
            'Compose: no `restart`, or `restart: "no"`',
            "a bare Pod with restartPolicy Never",
            "several processes in one container, whose shell does not notice that a server died",
            (
                "with --strict: a reloader (`uvicorn --reload`, `fastapi dev`) that lives on when "
                "the server that it watches crashes (else a warning)"
            ),
        ),
        held=("always, unless-stopped, on-failure; a controller of Kubernetes; Swarm",),
        mend="restart: unless-stopped",
        limits=(
            "What ends by itself is no service that runs on: a job of Kubernetes; a program that "
            "does one thing (alembic, pytest, a script named for tests, seeds or migrations that "
            "serves nobody); what others wait for with service_completed_successfully; by its "
            "name or profile (`migrate`, `tools`, `batch`) what publishes no port and is not "
            "restarted. R1, R2 and R5 don't apply to it either. What has another profile, no port "
            "and no health check, and nothing in it that is seen to go on, may be a job: that is a "
            "question, and `--fix` gives a restart policy to nothing that may be one."
        ),
        proof=(
            "SIGKILL of the server's process from the host; it is ready again, and was restarted "
            "once."
        ),
    ),
    Contract.R5: Explained(
        why=(
            "An update that stops the old one before the new one answers refuses requests "
            "meanwhile."
        ),
        applies="an update mechanism is declared, and the service takes requests",
        violated=(
            "strategy Recreate",
            "all replicas may be unavailable at once, as Kubernetes rounds it",
            "no readinessProbe: a pod counts as ready as soon as it has started",
            "Swarm: stop-first with one replica, or start-first without a health check",
        ),
        held=("readiness and a surge, or start-first with a health check",),
        open_when="one service in Compose: it stops first (violated with --strict)",
        mend="Add a readinessProbe, and let one more pod start before one stops.",
        proof=(
            "Update under a steady rate of requests: none is refused, and every accepted run ends"
            " or can go on."
        ),
    ),
    Contract.R6: Explained(
        why="After a crash a step is executed again. What it sent before the crash is sent twice.",
        applies="nodes or tools act on the outside world",
        violated=("by injection only: one operation was applied twice",),
        held=("by injection only: each operation was applied once",),
        mend="Give the act an idempotency key, or record it before and after.",
        proof=(
            "SIGKILL between an effect and its checkpoint; the effect's server counts each "
            "operation once."
        ),
    ),
    Contract.R7: Explained(
        why="A run that was cut off waits for ever if nobody takes it up again.",
        applies="runs outlast requests",
        violated=("by injection only: the run never ends without a client's call",),
        held=("by injection only: it ends, or can be taken up, by itself",),
        mend="List unfinished runs at a start, or use a queue that acknowledges late.",
        proof="SIGKILL, then start: the run reaches its end without a client.",
    ),
    Contract.R8: Explained(
        why="One memory limit is shared by all runs of a container: the largest moment counts.",
        applies="a memory limit and a number of concurrent runs are declared",
        violated=("by injection only: the kernel killed it for memory",),
        held=("by injection only: all runs at once fit",),
        mend="Raise the limit, or let fewer runs go on at once.",
        proof="Fill it to its concurrency with runs of a given size: none is killed.",
    ),
    Contract.C1: Explained(
        why=(
            "A killed process runs no cleanup. Locks, sandboxes and browsers stay taken unless "
            "they end by themselves."
        ),
        applies="the code takes leases, locks, sandboxes, browsers or registrations",
        violated=(
            "released in `finally`, `atexit` or a shutdown handler only, and taken without an end",
        ),
        held=("it ends by itself (TTL), with the connection, or a start gives back what was left",),
        open_when="a library decides about it",
        mend="Take it with a TTL, and renew it while it is needed.",
        proof="SIGKILL while it is held; a second instance gets it within the TTL.",
    ),
    Contract.C2: Explained(
        why=(
            "A deploy cuts every stream. A client that connects again must get what it missed, "
            "once."
        ),
        applies="events are streamed to clients",
        violated=("by injection only: events are missing, come twice, or never end",),
        held=("by injection only: event ids are whole and the last one arrives",),
        mend="Give events ids, keep them, and honour Last-Event-ID.",
        proof="Replace the container in mid-stream; the client comes back with Last-Event-ID.",
    ),
}


def explained(contract: Contract) -> str:
    """Return what a contract means, as Markdown that reads well on a terminal, too."""
    text = EXPLAINED[contract]
    parts = [f"{contract.value}: {TITLES[contract]}", "", text.why, ""]
    parts += [f"Applies when: {text.applies}.", ""]
    parts += ["Violated when", *(f"- {each}" for each in text.violated), ""]
    parts += ["Held when", *(f"- {each}" for each in text.held), ""]
    if text.open_when:
        parts += [f"Open when: {text.open_when}.", ""]
    parts += [f"To mend it: {text.mend}", "", f"Proof by injection: {text.proof}"]
    if text.limits:
        parts += ["", text.limits]
    return "\n".join(parts) + "\n"


def explained_json(contract: Contract) -> dict[str, object]:
    """Return what a contract means, for programs."""
    text = EXPLAINED[contract]
    return {
        "schema": 1,
        "contract": contract.value,
        "title": TITLES[contract],
        "why": text.why,
        "applies_when": text.applies,
        "violated_when": list(text.violated),
        "held_when": list(text.held),
        "open_when": text.open_when or None,
        "mend": text.mend,
        "proof": text.proof,
        "limits": text.limits or None,
    }
