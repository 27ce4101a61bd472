"""Classes of libraries that keep state, by name: what they keep, and where."""

import re

from perdure.contracts._patterns import regex
from perdure.contracts.code.facts import Medium, Role

_ANY = r"^(Base|Async|Aio)*(Shallow)?"
_END = r"(Saver|Checkpointer)$"
_BY_NAME = (
    (regex(r"^(In)?MemorySaver$|^PersistentDictSaver$"), Role.SAVER, Medium.MEMORY),
    (regex(r"^(Async|Aio)?(Sqlite|DuckDB|File|Disk)\w*" + _END), Role.SAVER, Medium.FILE),
    (regex(_ANY + r"(Postgres|PG|Pg)\w*" + _END), Role.SAVER, Medium.POSTGRES),
    (regex(_ANY + r"(Redis|Valkey)\w*" + _END), Role.SAVER, Medium.REDIS),
    (regex(r"^(Base|Async|Aio)*Mongo\w*(Saver|Checkpointer)$"), Role.SAVER, Medium.MONGO),
    (
        regex(
            r"^(Base|Async|Aio|Py|AIO)*(MySQL|Dynamo\w*|Bedrock\w*|Firestore\w*|Cosmos\w*|Oracle\w*|Couchbase\w*|"
            r"Snowflake\w*|Neo4j\w*|Elasticsearch\w*|Cassandra\w*|Scylla\w*|Spanner\w*|CloudSQL\w*|GCS\w*|S3\w*|"
            r"AgentCore\w*|TiDB\w*|MariaDB\w*)(Saver|Checkpointer|CheckpointSaver)$"
        ),
        Role.SAVER,
        Medium.NETWORK,
    ),
    (regex(r"^InMemory(Base)?Store$"), Role.STORE, Medium.MEMORY),
    (regex(r"^(Base|Async|Aio)*SqliteStore$"), Role.STORE, Medium.FILE),
    (regex(r"^(Base|Async|Aio)*PostgresStore$"), Role.STORE, Medium.POSTGRES),
    (regex(r"^(Base|Async|Aio)*RedisStore$"), Role.STORE, Medium.REDIS),
    (regex(r"^(Base|Async|Aio)*MongoDBStore$"), Role.STORE, Medium.MONGO),
    (regex(r"^(InMemory)?ChatMessageHistory$|^InMemoryHistory$"), Role.HISTORY, Medium.MEMORY),
    (regex(r"^Conversation\w*Memory$"), Role.HISTORY, Medium.MEMORY),
    (regex(r"^RedisChatMessageHistory$"), Role.HISTORY, Medium.REDIS),
    (regex(r"^PostgresChatMessageHistory$"), Role.HISTORY, Medium.POSTGRES),
    (regex(r"^MongoDBChatMessageHistory$"), Role.HISTORY, Medium.MONGO),
    (regex(r"^FileChatMessageHistory$"), Role.HISTORY, Medium.FILE),
    (regex(r"^SQLChatMessageHistory$|^DatabaseSessionService$"), Role.HISTORY, Medium.UNKNOWN),
    (regex(r"^InMemorySessionService$|^InMemoryRunner$"), Role.HISTORY, Medium.MEMORY),
    (regex(r"^InMemoryDb$|^SimpleChatStore$"), Role.HISTORY, Medium.MEMORY),
    (regex(r"^VertexAiSessionService$|^S3SessionManager$"), Role.HISTORY, Medium.NETWORK),
    (regex(r"^(Advanced)?SQLiteSession$|^FileSessionManager$"), Role.HISTORY, Medium.FILE),
    (regex(r"^Sqlite(Db|(Agent)?Storage)$"), Role.HISTORY, Medium.FILE),
    (regex(r"^(Async)?Postgres(Db|(Agent)?Storage)$"), Role.HISTORY, Medium.POSTGRES),
    (regex(r"^Mongo(Db|(Agent)?Storage)$"), Role.HISTORY, Medium.MONGO),
    (regex(r"^Redis(Db|Session|(Agent)?Storage)$"), Role.HISTORY, Medium.REDIS),
)  # fmt: skip

_LIBRARIES = (
    "langgraph", "langchain", "aegra", "agno", "deepagents", "google.adk", "phi.", "strands",
    "llama_index", "agents",
)  # fmt: skip
"""First parts of the packages whose classes these are."""

LOCATION_WORDS = {
    "conn_string", "redis_url", "connection_string", "url", "conn", "path", "conninfo", "uri",
    "database", "db_path", "file_path", "dsn", "connection_url", "client", "pool",
}  # fmt: skip
"""Parameters that say where the state is."""


def kind_of(dotted: str) -> tuple[Role, Medium] | None:
    """Return what a class of a library keeps, and where; `None` for any other class."""
    package, _, name = dotted.rpartition(".")
    if not package.startswith(_LIBRARIES):
        return None
    for pattern, role, medium in _BY_NAME:
        if pattern.match(name):
            # Stores of LangChain hold the documents of a retriever, no memories of an agent.
            return (
                None if role is Role.STORE and package.startswith("langchain") else (role, medium)
            )
    if name == "BaseCheckpointSaver":
        return Role.SAVER, Medium.UNKNOWN
    if name == "BaseStore":
        return Role.STORE, Medium.UNKNOWN
    is_session = package.startswith("agents") and name in {"Session", "SessionABC"}
    if is_session or (name == "BaseChatMessageHistory" and package.startswith("langchain")):
        return Role.HISTORY, Medium.UNKNOWN
    return None


NAMES = {
    "langgraph.checkpoint.memory": {"MemorySaver", "InMemorySaver", "PersistentDict"},
    "langgraph.checkpoint.sqlite": {"SqliteSaver", "AsyncSqliteSaver"},
    "langgraph.checkpoint.sqlite.aio": {"AsyncSqliteSaver"},
    "langgraph.checkpoint.postgres": {
        "PostgresSaver", "AsyncPostgresSaver", "BasePostgresSaver", "ShallowPostgresSaver", "Conn",
    },
    "langgraph.checkpoint.postgres.aio": {
        "AsyncPostgresSaver", "AsyncShallowPostgresSaver", "Conn",
    },
    "langgraph.checkpoint.redis": {
        "RedisSaver", "AsyncRedisSaver", "ShallowRedisSaver", "AsyncShallowRedisSaver",
        "BaseRedisSaver", "AsyncRedisStore", "RedisStore",
    },
    "langgraph.checkpoint.redis.aio": {"AsyncRedisSaver"},
    "langgraph.checkpoint.mongodb": {"MongoDBSaver", "AsyncMongoDBSaver"},
    "langgraph.checkpoint.mongodb.aio": {"AsyncMongoDBSaver"},
}  # fmt: skip
"""Names of savers that a module of a library has, or had in some release."""


def exists(module: str, name: str) -> bool:
    """Whether a library's module may have this name; `False` only for savers that never existed."""
    known = NAMES.get(module)
    if known is None or name in known:
        return True
    return not re.search(r"(Saver|Checkpointer|CheckpointSaver|Checkpoint)$", name)


def rank(medium: Medium) -> int:
    """Return how much a medium survives, to tell weaker from stronger ones."""
    return {Medium.NONE: 0, Medium.MEMORY: 1, Medium.UNKNOWN: 2, Medium.FILE: 3}.get(medium, 4)


GRAPH_MAKERS = frozenset(
    {
        "compile", "create_react_agent", "create_agent", "create_deep_agent", "create_supervisor",
        "create_swarm", "async_create_deep_agent", "create_handoff_agent", "entrypoint",
        "create_tool_calling_agent", "create_deep_research_agent",
    }
)  # fmt: skip
"""Calls that make a graph or an agent, and take `checkpointer=` and `store=`."""
