"""Limits of the sandbox: unit and reason each."""

ENTRIES_MAX = 200_000
"""Files, folders and links of one snapshot: a large checkout, and a manifest of some 30 MB."""

BYTES_MAX = 16 * 1024**3
"""Bytes of all files of one snapshot: what a slow disk copies in a few minutes."""

DEPTH_MAX = 128
"""Folders within folders: far above real trees, far below Python's limit on recursion."""

CHUNK_BYTES = 1024 * 1024
"""Bytes read at once when a file is hashed or copied."""

READ_TRIES_MAX = 3
"""How often a file that changes while it is read is read again."""

RACY_NS = 100_000_000
"""A file changed so shortly before it was hashed is hashed again next time: file systems stamp
changes with a clock of 1 to 10 ms, so that a later change could carry the same time."""

LOCK_WAIT_S = 10.0
"""How long `take` and `restore` wait for another process that is at work on the same sandbox."""

LOCK_STEP_S = 0.005
"""Pause between two tries for that lock."""

LAUNCHER_STOP_S = 5.0
"""How long a launcher may take to end when its socket is closed: it has only to kill."""

STOP_ROUNDS = 5
"""How often a command is killed within that time: it may be in its group only after the first."""

END_ROUNDS = 1_000
"""How often what is left of a plain command's session is killed, whatever it forks meanwhile."""

READ_BYTES = 1 << 16
"""Bytes of output read at once: what a pipe holds."""

OUTPUT_BYTES_MAX = 1 << 20
"""Bytes of output that are kept unless told: more than any model reads."""

FLOOD_BYTES_MAX = 1 << 30
"""Bytes of output at which a command is killed: no build prints so much."""

GIVEN_BYTES_MAX = 256 << 20
"""Bytes of input, or of a file that is written: it is held in memory."""

DEADLINE_S = 600.0
"""How long a command may take unless told."""

MEMORY_BYTES = 2 << 30
"""Memory of a turn unless told: a compiler and a test suite fit."""

PROCESSES_MAX = 512
"""Processes and OS threads of a turn unless told."""

MEMORY_BYTES_MIN = 32 << 20
"""And at least: what builds a tree and starts its commands takes some 16 MB of it."""

PROCESSES_MIN = 4
"""And at least: the first process, the next command, a command and one that it starts."""

CORES_MIN = 0.01
"""Processor time per second of a turn at least: the kernel counts in periods of 1 ms in 100."""

CORES_MAX = 4_096.0
"""And at most: as many as a host can have."""

DEADLINE_S_MIN = 0.001
"""A command may take so long at least."""

DEADLINE_S_MAX = 30 * 24 * 3600.0
"""And at most: longer than any command that somebody waits for."""

NUMBER_MAX = 1 << 62
"""The largest number that the kernel takes for a limit."""

FILE_BYTES_MAX = 8 << 30
"""Size of one file, also of a sparse one."""

FILES_OPEN_MAX = 4096
"""Open files of a process."""

CHAIN_MAX = 400
"""Layers on top of each other in one mount: the kernel takes 500 lower folders."""

SQUASH_AT = 48
"""Layers at which a snapshot is kept as one layer, too: each costs a command some 0.05 ms."""

HISTORY_MAX = 1_000_000
"""Layers from a snapshot to the base: more than a thread has steps."""

RANGE_IDS = 65_536
"""User ids of a tenant's sandboxes: as many as programs expect."""

RANGE_FIRST = 1_879_048_192
"""The first of them: far above what hosts and other container engines hand out."""

RANGES_MAX = 32_000
"""Tenants of one root: the ids end at 2^32."""

COMMAND_BYTES_MAX = 96 * 1024
"""Bytes of a command and its variables: they travel in one packet."""

CHANGES_MAX = 10_000
"""Changed paths that are listed: more than anybody reads, a package manager's run fits."""

NAME_BYTES_MAX = 1 << 16
"""Bytes of a package.json that are read for its version."""

STATUS_BYTES_MAX = 16 << 20
"""Bytes of dpkg's list of packages that are read: five times that of a large system."""

CONNECTIONS_MAX = 64
"""Connections of a turn at once: what a package manager opens, several times over."""

CONTACTS_MAX = 1_000
"""Connections of a turn that are told of."""

HEAD_BYTES_MAX = 1 << 16
"""Bytes of a request's head: far more than programs send."""

CONNECT_S = 30.0
"""How long a request's head, a name and a connection may take."""

NAME_CHARACTERS_MAX = 64
"""Characters of a service's name: it is also that of its log."""

READY_S = 30.0
"""How long a service may take until it answers, unless told."""

MEMORY_LOCKED_BYTES_MAX = 1 << 20
"""Memory that a process may lock."""

KILL_AGAIN_S = 0.02
"""Pause before a launcher that had no room for it is asked again to kill a turn."""

CATCH_UP_READS = 32
"""Reads of a pipe to its end when a command has ended and the pipe is still open: a pipe holds
one of them, sixteen if it was made larger."""

PREPARED = 4
"""Trees built in advance that a backend keeps unless told: some 6 MB each."""

PREPARED_MAX = 64
"""And at most."""

PREPARE_AFTER_S = 0.02
"""Pause after a command before the next tree is built: a snapshot that follows at once would end
it again, and what a model does takes far longer."""

ASIDE_MAX = 64
"""Folders that were set aside before a use of the sandbox removes them itself: about a tenth of a
second of removing."""

SWEEP_AFTER_S = 0.1
"""Pause after a use before what it set aside is removed: the next tree is built first."""

PREPARED_LOOK_S = 10.0
"""Pause between two looks at the memory of the host while a tree waits."""

PREPARED_LOOKS = 12
"""Looks until a tree that nobody wanted is ended: after two minutes a model has answered, or
somebody thinks."""

PREPARED_FREE_BYTES_MIN = 256 << 20
"""Memory that the host has left at least where a tree is built in advance."""

OPEN_READINGS_MAX = 128
"""Outputs of earlier commands that processes of a tree have open still; the oldest are closed."""

FREEZE_S = 2.0
"""How long stopping the processes of a tree may take: they stop at once, unless one is in the
middle of a system call that can't be interrupted."""

FREEZE_STEP_S = 0.001
"""Pause between two looks whether they have stopped."""

KILL_ROUNDS = 10
"""How often what is left of a command is killed where the kernel can't kill a group at once."""

PROCESSES_TOLD_MAX = 64
"""Processes of a snapshot that are told of."""

LINE_BYTES_MAX = 200
"""Bytes of a command line that are told."""

TABLE_BYTES_MAX = 1 << 20
"""Bytes of a table of sockets that are read: some 7,000 sockets."""

SOCKETS_MAX = 4_096
"""Descriptors of a process that are looked at for its ports."""
SANDBOX_BYTES_MAX = 16 << 30
"""Bytes that a sandbox's files take, unless told: a large project with all that it needs."""

SANDBOX_FILES_MAX = 500_000
"""Files and folders of a sandbox, unless told: the packages of a large project are 200,000."""

MEASURED_DEPTH_MAX = 1_000
"""Folders within folders that are measured: what is deeper can't be named by most programs."""

ANCHOR_LEVELS = 8
"""Levels that a folder is opened by at once when it is measured: 2 KB of names."""

WATCH_S = 0.25
"""Pause between two looks at the free room while a command runs: a fast disk fills 0.5 GB in it."""

REST_S = 2.0
"""The same while no command runs in a live sandbox: what goes on there is mostly idle."""

REST_AGE_S = 60.0
"""After so long what goes on between commands is walked again."""

WATCH_SHARE = 4
"""A walk of the changes is followed by a pause of so many times what it took, at least."""

CHANGES_SHARE = 8
"""Where less than this part of the room is left, and layers above the lowest take as much, they are
kept as one: what they replaced counts no more."""

NOTE_BYTES_MAX = 8_192
"""Bytes of a note about a sandbox, as its head or its number: TAKEN_MAX ids take 2 KB."""

LAYER_BYTES_MAX = 1 << 20
"""Bytes of a layer.json that are read: it takes 500, more where it tells of processes."""

DELETED_AT_ONCE = 500
"""Files of the tenant removed while nobody may take a snapshot: some milliseconds."""

STANDING_BYTES_MAX = 1 << 20
"""Bytes of a note about what a sandbox stands on: 400 layers take 12 KB."""

SEARCH_BYTES_MAX = 64 << 30
"""Bytes of files that are searched after an erasure: an hour on a slow disk."""

GATE_WAIT_S = 30.0
"""How long the use of layers and their collection wait for each other: both take milliseconds."""

SAMPLE_BYTES = 1 << 14
"""Bytes of a file of which pieces are looked for after an erasure."""

SAMPLE_FILES = 200
"""Files of an erased sandbox of which pieces are looked for."""

WATCH_AGE_S = 5.0
"""After so long what a command takes is walked again, also where the free room says no need."""

OVER_BYTES = 1 << 20
"""What a command may add in a sandbox that was over its room before: logs and folders, while it
removes what is too much."""

OVER_FILES = 256
"""The same in files: what is removed of the layers below leaves a mark each."""

FAR_BYTES = 2 << 30
"""A sandbox with little room is far over it by so much only: a command gets some 0.5 GB over it
before it is killed."""

FAR_FILES = 100_000
"""The same in files."""

FDINFO_BYTES_MAX = 4_096
"""Bytes that the kernel tells of a socket which are read."""

TAKEN_MAX = 64
"""Layers that a thread announces at once: far more than are taken before one of them has a record.
"""

PACKED_FILE_BYTES_MAX = 64 * 1024
"""Bytes of a file that is exported together with others; a larger one is an object or several."""

PIECE_BYTES = 4 << 20
"""Bytes of a piece of what is exported, before it is compressed: what is held in memory at once."""

INLINE_BYTES_MAX = 256 * 1024
"""Bytes of small files that go into the manifest: a small delta is then one object, one fsync."""

EXPORT_ENTRIES_MAX = 500_000
"""Files, folders and links of an exported layer: its manifest is some 50 MB then."""

EXPORT_BYTES_MAX = 64 << 30
"""Bytes of all files of an exported layer, without holes."""

EXPORT_FILE_BYTES_MAX = 1 << 40
"""Size of an exported file with its holes: they cost nothing, but programs must bear the number."""

EXTENTS_MAX = 65_536
"""Stretches of bytes between holes of one file."""

ATTRIBUTE_BYTES_MAX = 64 * 1024
"""Bytes of the attributes of one file: as many as the kernel lists."""

FILE_NAME_BYTES_MAX = 255
"""Bytes of a name: as many as the kernel takes."""

TARGET_BYTES_MAX = 4095
"""Bytes that a symbolic link points to: as many as the kernel takes."""

MANIFEST_BYTES_MAX = 128 << 20
"""Bytes of a manifest, before it is compressed: EXPORT_ENTRIES_MAX entries with long names."""

OBJECT_NAME_CHARACTERS_MAX = 512
"""Characters of an object's name: what the strictest of the usual stores takes is 1,024."""

OBJECTS_LISTED_MAX = 1_000
"""Names of objects that are listed at once, as S3 does."""

S3_CONNECT_S = 5.0
"""How long a connection to a bucket's server may take."""

S3_REQUEST_S = 60.0
"""How long one request may take: a piece of 4 MiB over 1 Mbit/s takes half of it."""

S3_RETRIES_MAX = 5
"""How often a request is repeated that the server or the network failed."""

S3_RETRY_S = 90.0
"""No request is repeated that began so long ago: who waits for a snapshot hears of it then."""

S3_BACKOFF_S = 0.1
"""Pause before the first repetition; the next ones are twice as long, with jitter."""

S3_BACKOFF_S_MAX = 5.0
"""Longest of these pauses."""

IDENTITY_BYTES = 16
"""Bytes of the random id of a place of exports: no two are equal."""

UNIQUE_BYTES = 8
"""Random bytes in a name that must never have been another's."""

CONDEMNED_NAMES_MAX = 50_000
"""Names in one list of what is given up at a place of exports."""

CONDEMNED_BYTES_MAX = 16 << 20
"""Bytes of such a list: CONDEMNED_NAMES_MAX names of pieces are 8 MB, manifests' are longer."""

CONDEMNED_KEPT_US = 7 * 24 * 3600 * 1_000_000
"""How long a list stays whose names are all gone: a collection that was stopped so long, and goes
on, could remove what was put under such a name since."""

EXPORT_TRIES = 8
"""How often an export begins again because a collection gave up what it counted on."""

KEY_COPIES_MAX = 64
"""Wrapped copies of data keys of one tenant that are looked at."""

EXPORT_LOCK_STEP_S = 0.02
"""Pause between two tries to become the one who exports on this host."""

EXPORT_WINDOW_S = 10.0
"""How long a backend that is closed lets exports go on that have begun."""

BASE_ENTRIES_MAX = 2_000_000
"""Files of the host that are looked at to tell one base from another."""
CRIU_LOOK_S = 20.0
"""How long CRIU may take to say its version, on a host that is busy."""

CRIU_S = 120.0
"""How long taking or bringing back images of processes may take: 2 GiB on a slow disk."""

IMAGES_BYTES_MAX = 8 << 30
"""Bytes of the images of one snapshot: several times the memory of a turn."""

IMAGES_FILES_MAX = 20_000
"""Files of the images of one snapshot: a few for each process and descriptor table."""

SEAL_BYTES_MAX = 4 << 20
"""Bytes of a seal: some 150 for each file."""

SEAL_CHUNK_BYTES = 8 << 20
"""Bytes of an image that are digested at once."""

SEAL_OS_THREADS = 2
"""OS threads that digest: the agent's other sandboxes need the processor, too."""

IMAGES_KEPT = 4
"""Snapshots of a thread, the newest first, that images of processes are kept of: each has what the
processes have in memory, and an agent goes back a few steps, not hundreds."""

WARM_MAX = 64
"""Modules that a waiting Python imports: their names go in one packet."""

PYTHON_TURNS = 8
"""Commands after a program for Python before whose trees a Python is started again: agents write
and read files in between."""
