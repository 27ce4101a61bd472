"""What each contract says, in one line, and what is lost where it is broken."""

from perdure.contracts.findings import Contract

TITLES: dict[Contract, str] = {
    Contract.S0: "A saver that fails is not replaced by a weaker one in silence",
    Contract.S1: "A restart keeps threads, paused runs and memories",
    Contract.S2: "A replacement of the container keeps them, too",
    Contract.S3: "Every replica and every worker sees the same state",
    Contract.S4: "Databases accept connections before migrations begin",
    Contract.R1: "The time to stop covers what is under way",
    Contract.R2: "SIGTERM reaches the application",
    Contract.R3: "Progress is saved while a run goes on",
    Contract.R4: "The server is started again after a crash",
    Contract.R5: "An update keeps somebody listening",
    Contract.R6: "Effects that are executed again do no harm",
    Contract.R7: "Interrupted runs are taken up again",
    Contract.R8: "The memory limit fits all runs at once",
    Contract.C1: "What is taken outside is given back without shutdown code",
    Contract.C2: "Clients of streams go on after a deploy",
}

LOST: dict[Contract, str] = {
    Contract.S0: "a saver that fails is replaced by a weaker one in silence",
    Contract.S1: "a restart loses threads, paused runs and memories",
    Contract.S2: "a replacement of the container loses threads, paused runs and memories",
    Contract.S3: "replicas and workers see different states",
    Contract.S4: "what starts can find its database not there yet",
    Contract.R1: "what is under way is killed before it has ended",
    Contract.R2: "SIGTERM does not reach the application",
    Contract.R3: "progress is not saved while a run goes on",
    Contract.R4: "the server stays down after a crash",
    Contract.R5: "an update leaves nobody listening",
    Contract.R6: "effects that are executed again do harm",
    Contract.R7: "interrupted runs are not taken up again",
    Contract.R8: "all runs at once are more than the memory limit",
    Contract.C1: "what is taken outside stays taken when shutdown code does not run",
    Contract.C2: "clients of streams cannot go on after a deploy",
}
"""The same for a violation: a text under it must not say that all is well."""
