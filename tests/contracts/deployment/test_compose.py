"""Compose files, merged and read as Compose does it."""

import pytest

from perdure.contracts.deployment import read_roots
from perdure.contracts.deployment.facts import Lifetime, Signal
from perdure.contracts.evidence import Confidence
from tests.contracts.deployment.reading import SLIM, project, roots, service, services

DOCKERFILE = SLIM + 'CMD ["uvicorn", "app:app"]\n'


def compose(text, **more):
    named = {name.replace("__", "/").replace("_dot_", "."): inner for name, inner in more.items()}
    return {"Dockerfile": DOCKERFILE, "compose.yaml": text, **named}


def test_the_command_takes_the_place_of_cmd(tmp_path):
    files = compose("services:\n  api:\n    build: .\n    command: uvicorn app:api --port 80\n")
    start = service(tmp_path, files).start
    assert start.server.target == "app:api"
    assert start.signal.value is Signal.REACHES  # a string is split into words: no shell
    assert start.signal.evidence[0].line == 4


def test_an_entry_point_clears_cmd(tmp_path):
    files = compose(
        "services:\n  api:\n    build: .\n    entrypoint: [tini, --]\n    command: [a]\n"
    )
    assert service(tmp_path, files).start.argv == ("tini", "--", "a")
    files = compose("services:\n  api:\n    build: .\n    entrypoint: gunicorn a:b\n")
    assert service(tmp_path, files).start.argv == ("gunicorn", "a:b")


def test_init_does_not_make_a_shell_hand_signals_on(tmp_path):
    files = compose(
        "services:\n  api:\n    build: .\n    init: true\n    command: sh -c 'uvicorn a:b'\n"
    )
    start = service(tmp_path, files).start
    assert start.has_init
    assert start.signal.value is Signal.LOST


POLICIES = {
    "": ("no", True),
    "restart: always": ("always", False),
    "restart: no": ("no", False),
    'restart: "no"': ("no", False),
    "restart: false": ("no", False),
    "restart: on-failure:3": ("on-failure:3", False),
    "deploy: {restart_policy: {condition: any}}": ("swarm_any", False),
    "deploy: {restart_policy: {condition: on-failure, max_attempts: 2}}": ("on-failure:2", False),
    "deploy: {restart_policy: {condition: none}}": ("no", False),
    "restart: ${POLICY:-unless-stopped}": ("unless-stopped", False),
}


@pytest.mark.parametrize(("line", "expected"), POLICIES.items())
def test_restart(tmp_path, line, expected):
    found = service(tmp_path, compose(f"services:\n  api:\n    build: .\n    {line}\n")).restart
    assert (found.value, found.is_default) == expected
    assert found.evidence[0].line == (4 if line else 2)


GRACES = {"": 10.0, "stop_grace_period: 1m30s": 90.0, "stop_grace_period: 500ms": 0.5}


@pytest.mark.parametrize(("line", "seconds"), GRACES.items())
def test_grace(tmp_path, line, seconds):
    files = compose(f"services:\n  api:\n    build: .\n    {line}\n")
    assert service(tmp_path, files).grace_s.value == seconds


def test_a_variable_without_a_value_is_a_question(tmp_path):
    files = compose("services:\n  api:\n    build: .\n    restart: ${POLICY}\n")
    known = service(tmp_path, files).restart
    assert (known.value, known.question) == (None, "What is the value of POLICY?")
    known = service(tmp_path, files, POLICY="always").restart
    assert (known.value, known.assumed) == ("always", ("POLICY=always",))


def test_samples_declare_defaults_and_the_real_file_is_never_read(tmp_path):
    files = compose(
        "services:\n  api:\n    build: .\n    env_file: .env\n    restart: ${POLICY:-no}\n",
        _dot_env="SECRET=of-mine\nPOLICY=never\n",
        _dot_env_dot_example='POLICY=always # why\nURL="postgres://db/x"\nEMPTY=\n',
    )
    found = service(tmp_path, files)
    assert found.restart.value == "always"
    assert found.restart.confidence is Confidence.DECLARED_DEFAULT
    assert found.environment["URL"].known.value == "postgres://db/x"
    assert "SECRET" not in found.environment
    assert "EMPTY" not in found.environment


def test_environment_in_both_forms(tmp_path):
    text = "services:\n  api:\n    build: .\n    environment:\n{}\n"
    for lines in (
        "      A: b\n      C: ${D:-e}\n      F:",
        "      - A=b\n      - C=${D:-e}\n      - F",
    ):
        found = service(tmp_path, compose(text.format(lines))).environment
        assert found["A"].known.value == "b"
        assert found["C"].known.value == "e"
        assert found["F"].known.question == "What is the value of F?"
        assert found["C"].known.evidence[0].line == 6


def test_mounts_in_every_form(tmp_path):
    text = """
services:
  api:
    build: .
    tmpfs: /quick
    volumes:
      - data:/data
      - ./src:/app/src:ro
      - /anonymous
      - ${HOME_DIR:-./saves}:/saves
      - {type: tmpfs, target: /fast}
      - {type: bind, source: ./conf, target: /conf, read_only: true}
      - memory:/memory
volumes:
  data:
  memory: {driver_opts: {type: tmpfs}}
"""
    dockerfile = DOCKERFILE + "VOLUME /image /data\n"
    found = service(tmp_path, {"compose.yaml": text, "Dockerfile": dockerfile})
    lives = {each.path: (each.lifetime, each.kind, each.source) for each in found.mounts}
    assert lives == {
        "/data": (Lifetime.NAMED, "volume", "data"),
        "/app/src": (Lifetime.NAMED, "bind", "src"),
        "/anonymous": (Lifetime.ANONYMOUS, "volume", None),
        "/saves": (Lifetime.NAMED, "bind", "saves"),
        "/fast": (Lifetime.TMPFS, "tmpfs", None),
        "/conf": (Lifetime.NAMED, "bind", "conf"),
        "/memory": (Lifetime.TMPFS, "volume", "memory"),
        "/quick": (Lifetime.TMPFS, "tmpfs", None),
        "/image": (Lifetime.ANONYMOUS, "image_volume", None),
    }
    assert [(s.container, s.project) for s in found.sources] == [
        ("/app", ""),
        ("/app/src", "src"),
        ("/saves", "saves"),
        ("/conf", "conf"),
    ]


def test_dependencies_in_both_forms(tmp_path):
    text = "services:\n  db: {{image: postgres}}\n  api:\n    build: .\n    depends_on: {}\n"
    short = services(tmp_path, compose(text.format("[db]")))["api"].depends_on
    assert [(d.service, d.condition) for d in short] == [("db", "service_started")]
    long = text.format("\n      db:\n        condition: service_healthy\n")
    found = services(tmp_path, compose(long))["api"].depends_on
    assert [(d.service, d.condition) for d in found] == [("db", "service_healthy")]
    assert found[0].evidence[0].line == 7


def test_an_override_is_laid_over_its_main_file(tmp_path):
    files = compose(
        "services:\n  api:\n    build: .\n    restart: always\n    ports: ['80:80']\n"
        "    environment: [A=b]\n    command: [old]\n    volumes: ['./a:/x']\n",
        compose_dot_override_dot_yaml="services:\n  api:\n    restart: !reset null\n"
        "    ports: ['81:81']\n    environment: {A: c, D: e}\n    command: [uvicorn, 'a:b']\n"
        "    volumes: ['./b:/x']\n",
    )
    found = service(tmp_path, files)
    assert found.restart.is_default
    assert found.ports == ("80", "81")
    assert found.environment["A"].known.value == "c"
    assert found.start.server.target == "a:b"
    assert [mount.source for mount in found.mounts] == ["b"]


def test_override_and_reset_tags(tmp_path):
    files = compose(
        "services:\n  api:\n    build: .\n    ports: ['80:80']\n    tmpfs: [/a]\n",
        compose_dot_override_dot_yaml="services:\n  api:\n    ports: !override ['81:81']\n"
        "    tmpfs: !reset []\n",
    )
    found = service(tmp_path, files)
    assert (found.ports, found.mounts) == (("81",), ())


def test_alternatives_are_roots_and_partial_files_are_laid_over_the_main_one(tmp_path):
    files = compose(
        "services:\n  api: {build: .}\n",
        docker_compose_dot_prod_dot_yml="services:\n  api: {build: ., restart: always}\n",
        compose_dot_gpu_dot_yaml="services:\n  api: {scale: 3}\n",
    )
    files["docker-compose.prod.yml"] = files.pop("docker_compose.prod.yml")
    found = roots(tmp_path, files)
    assert sorted(found) == ["compose.gpu.yaml", "compose.yaml", "docker-compose.prod.yml"]
    assert found["compose.gpu.yaml"].services[0].replicas.value == 3
    assert found["compose.gpu.yaml"].files == ("compose.yaml", "compose.gpu.yaml")


def test_extends_and_include_and_anchors(tmp_path):
    files = compose(
        "include: [more/compose.yaml]\nx-base: &base\n  restart: always\n"
        "services:\n  api:\n    <<: *base\n    extends: {file: common.yml, service: base}\n"
        "    environment: {B: c}\n",
        common_dot_yml="services:\n  base:\n    build: .\n    restart: 'no'\n"
        "    environment: {A: b}\n",
        more__compose_dot_yaml="services:\n  other: {image: redis:7}\n",
    )
    found = services(tmp_path, files)
    assert sorted(found) == ["api", "other"]
    assert found["api"].restart.value == "always"
    assert found["api"].image.dockerfile == "Dockerfile"
    assert set(found["api"].environment) == {"A", "B"}
    assert found["other"].image.catalog == "redis"


@pytest.mark.filterwarnings("error")
def test_an_anchor_may_be_given_twice(tmp_path):
    files = compose(
        "x-one: &way always\nservices:\n  old: {image: a, restart: *way}\n"
        "  new: {image: a, labels: [&way unless-stopped], restart: *way}\n"
    )
    found = services(tmp_path, files)
    told = {name: found[name].restart.value for name in found}
    assert told == {"old": "always", "new": "unless-stopped"}


@pytest.mark.parametrize("name", ["docker-compose.test.yml", "docker-compose.smoke.yml"])
def test_files_for_tests_are_left_out_and_named(tmp_path, name):
    files = compose("services:\n  api: {build: .}\n")
    files[name] = "services:\n  api: {build: .}\n"
    found = project(tmp_path, files)
    from perdure.contracts.deployment import read_roots  # noqa: PLC0415  # what is left matters

    assert [root.root for root in read_roots(found, assume={})] == ["compose.yaml"]
    assert [unread.file for unread in found.unread] == [name]


def test_an_image_that_is_built_elsewhere_is_found(tmp_path):
    files = {
        "README.md": "Run:\n\n    docker build -t acme/agent:1 -f docker/Dockerfile .\n",
        "docker/Dockerfile": DOCKERFILE,
        "compose.yaml": "services:\n  api: {image: 'acme/agent:1'}\n",
    }
    (found,) = roots(tmp_path, files).values()
    (api,) = found.services
    assert api.image.dockerfile == "docker/Dockerfile"
    places = [(each.file, each.line) for each in api.image.evidence]
    assert places == [("compose.yaml", 2), ("README.md", 3)]
    assert api.start.server.target == "app:app"


def test_an_image_of_others_is_not_guessed_at(tmp_path):
    found = roots(
        tmp_path,
        {"Dockerfile": DOCKERFILE, "compose.yaml": "services:\n  db: {image: 'postgres:16'}\n"},
    )
    assert found["compose.yaml"].services[0].image.dockerfile is None
    assert found["Dockerfile"].services[0].start.server.target == "app:app"


def test_what_ends_by_itself(tmp_path):
    text = (
        "services:\n  migrate: {build: ., command: alembic upgrade head}\n  init:\n    image: x/y\n"
        "  api:\n    build: .\n    depends_on:\n      init:\n"
        "        condition: service_completed_successfully\n"
    )
    found = services(tmp_path, compose(text))
    assert {name for name, each in found.items() if each.is_one_shot} == {"migrate", "init"}


def test_swarm_and_limits(tmp_path):
    text = """
services:
  api:
    build: .
    container_name: api
    deploy:
      replicas: 3
      update_config: {order: start-first}
      resources: {limits: {memory: 512M}}
"""
    found = service(tmp_path, compose(text))
    assert (found.replicas.value, found.replicas.evidence[0].line) == (3, 7)
    assert (found.update.mechanism, found.update.order) == ("swarm", "start-first")
    assert found.memory_bytes.value == 512 * 1024 * 1024
    assert [each.line for each in found.fixed_ports] == [5]


def test_a_langgraph_json_alone_is_a_deployment(tmp_path):
    found = roots(tmp_path, {"agent/langgraph.json": '{"graphs": {"a": "./a.py:graph"}}'})
    (root,) = found.values()
    assert root.root == "agent/langgraph.json"
    assert root.services[0].image.catalog == "langgraph-api"
    assert not roots(tmp_path / "none", {"README.md": "nothing\n"})


def test_a_container_has_other_names_in_the_network(tmp_path):
    text = (
        "services:\n  db:\n    image: postgres:16\n    container_name: shop-db\n"
        "    hostname: data\n"
        "    networks: {back: {aliases: [store]}}\n"
    )
    (db,) = roots(tmp_path, {"compose.yaml": text})["compose.yaml"].services
    assert db.aliases == ("shop-db", "data", "store")


@pytest.mark.parametrize(
    ("lines", "is_interactive"),
    [
        ("command: python cli.py", True),
        ("command: python cli.py\n    restart: always", False),
        ("command: uvicorn app:app", False),
        ('command: python cli.py\n    ports: ["80:80"]', False),
    ],
)
def test_a_terminal_makes_no_server_a_tool(tmp_path, lines, is_interactive):
    text = f"services:\n  api:\n    build: .\n    tty: true\n    {lines}\n"
    assert services(tmp_path, compose(text))["api"].is_interactive is is_interactive


@pytest.mark.parametrize("remote", ["oci://docker.io/a/b:1", "https://example.org/a.git"])
def test_what_is_included_from_elsewhere_is_named(tmp_path, remote):
    files = compose(f"include:\n  - {remote}\nservices:\n  api:\n    build: .\n")
    given = project(tmp_path, files)
    [root] = read_roots(given, assume={})
    assert [each.name for each in root.services] == ["api"]
    [unread] = given.unread
    assert (unread.file, unread.line) == ("compose.yaml", 2)
    assert f"it includes {remote}, which is not fetched" in unread.reason
