"""What is known of images by name: what they run, their shell, and whether they start programs."""

import re

from msgspec import Struct

from perdure.contracts._patterns import regex

_CATALOG: dict[str, tuple[str, ...]] = {
    "langgraph-api": ("langgraph(js)?-api", "langgraph-server", "langgraph-executor"),
    "postgres": (
        "postgres(ql)?", "pgvector", r"timescaledb(-ha)?", "postgis", "pgvecto-rs", "paradedb",
    ),
    "redis": (
        "redis", r"redis-stack(-server)?", r"valkey(-bundle)?", "keydb", "dragonfly",
        "redis-sentinel",
    ),
    "mongo": (r"mongo(db)?(-community-server)?", "mongodb-atlas-local", "percona-server-mongodb"),
    "mysql": (r"mysql(-server)?", "mariadb", r"percona(-server)?"),
    "dynamodb": ("dynamodb-local",),
    "proxy": (
        r"nginx(-unprivileged)?", "caddy", "traefik", "envoy", "haproxy", "httpd", "kong",
        "openresty", "apisix", "swag", "traefik-forward-auth",
    ),
    "search": (
        "elasticsearch", "opensearch", "meilisearch", "typesense", "manticore", "quickwit", "solr",
        "zincsearch",
    ),
    "vectors": (
        "qdrant", "weaviate", "milvus", r"chroma(db)?", "lancedb", "vespa", "infinity",
    ),
    "graph": (
        "neo4j", r"memgraph(-mage|-platform)?", "arangodb", "falkordb", "janusgraph", "dgraph",
        r"nebula\S*",
    ),
    "broker": (
        "rabbitmq", "kafka", "cp-kafka", "redpanda", "nats", "zookeeper", "cp-zookeeper", "pulsar",
        "mosquitto", "emqx",
    ),
    "objects": (
        "minio", "mc", "localstack", "azurite", "seaweedfs", "garage", "rustfs", "fake-gcs-server",
    ),
    "database": (
        "etcd", "consul", "vault", "memcached", r"clickhouse(-server)?", "couchdb", "cassandra",
        "scylla", "cockroach", "tidb", "oracle-xe", "mssql-server", "server-sqlserver", "surrealdb",
        "influxdb", "questdb", "immudb", "rqlite",
    ),
    "model": (
        "ollama", "vllm-openai", "text-generation-inference",
        "text-embeddings-inference",
        "localai", r"litellm(-database)?", "xinference", r"llama\.cpp", "infinity-emb",
        r"triton\S*",
    ),
    "telemetry": (
        "prometheus", r"grafana(-oss|-enterprise)?", "loki", "tempo", "jaeger", "all-in-one",
        "alertmanager", "promtail", "mimir", r"otel\S*", r"opentelemetry-collector\S*", "zipkin",
        "node-exporter", "cadvisor", "alloy", "vector", "fluent-bit", "fluentd",
        r"\S+[-_]exporter", "kibana", "logstash", "filebeat", r"datadog-agent", "lgtm", "phoenix",
        r"langfuse\S*", "mlflow", "flower", "uptime-kuma", "sentry", r"langsmith\S*",
    ),
    "identity": (
        "keycloak", "dex", "authelia", "oauth2-proxy", "zitadel", r"ory\S*", "hydra", "kratos",
        "infisical", "openfga", "gotrue", "postgrest", "authentik", "logto", r"supertokens\S*",
    ),
    "tool": (
        "adminer", "pgadmin4?", "mongo-express", "redis-commander", "redisinsight", "phpmyadmin",
        r"portainer\S*", "dozzle", "watchtower", "attu", "mailhog", "mailpit", "kafka-ui", "dbgate",
        "cloudbeaver", "metabase", "superset", "searxng", "browserless", "chrome", r"selenium\S*",
        r"playwright\S*", r"firecrawl\S*", "unstructured-api", "tika", "gotenberg", "n8n",
        "open-webui", "temporal", "auto-setup", "temporal-ui", "airflow", "cloudflared", "certbot",
        "tailscale", "ngrok", "docker", "registry", "migrate", "busybox", "bifrost",
    ),
}  # fmt: skip
_COMPILED = tuple(
    (regex(rf"^(?:{'|'.join(patterns)})$"), word) for word, patterns in _CATALOG.items()
)

DATABASES = frozenset({"postgres", "redis", "mongo", "mysql", "database", "dynamodb"})
"""Words of the catalog for what keeps others' state."""

_ALPINE = regex(r"alpine")
_DEBIAN_TAGS = regex(r"slim|bookworm|bullseye|buster|trixie|forky|jammy|focal|noble|debian|ubuntu")
_DEBIAN = frozenset(
    [
        "python",
        "debian",
        "ubuntu",
        "node",
        "golang",
        "rust",
        "ruby",
        "openjdk",
        "buildpack-deps",
        "pypy",
        "perl",
        "php",
        "httpd",
        "miniconda3",
        "anaconda3",
        "miniforge3",
        "mambaforge",
        "micromamba",
        "pytorch",
        "tensorflow",
        "cuda",
        "jupyter",
        "nginx",
        "postgres",
        "redis",
        "mongo",
        "playwright",
        "python-poetry",
        "langgraph-api",
        "langgraphjs-api",
        "eclipse-temurin",
        "uvicorn-gunicorn",
        "uvicorn-gunicorn-fastapi",
    ]
)
_RPM = frozenset(
    [
        "centos",
        "fedora",
        "rockylinux",
        "almalinux",
        "amazonlinux",
        "oraclelinux",
        "ubi8",
        "ubi9",
        "ubi",
        "ubi-minimal",
        "python-39",
        "python-311",
        "python-312",
        "python-313",
        "opensuse",
        "leap",
        "tumbleweed",
    ]
)
_WITHOUT_ENTRYPOINT = frozenset(
    [
        "python",
        "debian",
        "ubuntu",
        "alpine",
        "golang",
        "rust",
        "ruby",
        "openjdk",
        "buildpack-deps",
        "pypy",
        "perl",
        "centos",
        "fedora",
        "rockylinux",
        "almalinux",
        "amazonlinux",
        "oraclelinux",
        "miniconda3",
        "anaconda3",
        "miniforge3",
        "pytorch",
        "bun",
        "uv",
        "debian-slim",
        "bash",
        "busybox",
        "scratch",
        "playwright",
        "eclipse-temurin",
    ]
)
_PASSING = frozenset(
    ["node", "php", "cuda", "nginx", "postgres", "redis", "mongo", "mysql", "mariadb", "micromamba"]
)
"""Their entry point executes its arguments in its own place."""


class Base(Struct, frozen=True, kw_only=True):
    """What is known of an image that others build on."""

    reference: str
    shell: str | None
    """What `/bin/sh` is: `dash`, `bash`, `ash`; `None`: not known."""
    runs_arguments: bool | None
    """Whether the command it is given becomes process 1; `None`: not known."""


def parts(reference: str) -> tuple[str, str, str]:
    """Return folder, name and tag of a reference: `ghcr.io/a/b:1@x` is `ghcr.io/a`, `b`, `1`."""
    bare = reference.partition("@")[0]
    path, _, last = bare.rpartition("/")
    name, _, tag = last.partition(":")
    return path.lower(), name.lower(), tag.lower()


def catalog(reference: str | None) -> str | None:
    """Return what an image is known as; `None`: nothing is known of its name."""
    if not reference:
        return None
    folder, name, _ = parts(reference)
    if folder.endswith(("bitnami", "bitnamilegacy")) and name == "postgresql":
        return "postgres"
    return next((word for pattern, word in _COMPILED if pattern.match(name)), None)


def base_of(reference: str) -> Base:
    """Return what is known of a base image."""
    folder, name, tag = parts(reference)
    shell: str | None = None
    if name == "alpine" or _ALPINE.search(tag) or name.endswith("-alpine"):
        shell = "ash"
    elif name == "uv" and not _DEBIAN_TAGS.search(tag):
        shell = None
    elif name in _RPM or folder.endswith(("ubi8", "ubi9")) or re.match(r"ubi\d", name):
        shell = "bash"
    elif name in _DEBIAN or _DEBIAN_TAGS.search(tag) or _DEBIAN_TAGS.search(name):
        shell = "dash"
    if name == "cuda" and re.search(r"ubi|rocky|centos", tag):
        shell = "bash"
    runs: bool | None = None
    if name in _WITHOUT_ENTRYPOINT or name in _PASSING or name in _RPM:
        runs = True
    elif folder.endswith("distroless") or "distroless" in name:
        runs = None
    elif re.fullmatch(r"python\d*(\.\d+)*(-slim|-uv|-base)?", name):
        runs = True
        shell = shell or ("dash" if name == "python" else None)
    return Base(reference=reference, shell=shell, runs_arguments=runs)
