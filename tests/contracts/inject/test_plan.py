"""What a trial starts, out of what a deployment says: order, mounts, copies, what it refuses."""

import os
import re
from pathlib import Path

import pytest

from perdure.contracts.deployment.facts import Dependency, Image, Lifetime, Mount, Variable
from perdure.contracts.evidence import Known
from perdure.contracts.findings import Contract
from perdure.contracts.inject import _plan
from perdure.contracts.inject._outcome import NEEDS, OTHERS, Event
from perdure.contracts.inject.engines import CliEngine, MountKind
from perdure.contracts.inject.settings import Settings, read_settings
from perdure.errors import SettingInvalid, TrialImpossible
from tests.contracts.inject.kit import root, service

GUIDE = Path(__file__).parents[3] / "docs" / "injection.md"


def after(*names):
    return tuple(
        Dependency(service=name, condition="service_started", evidence=()) for name in names
    )


def variable(value):
    return {"URL": Variable(name="URL", known=Known(value=value))}


def plan(folder, *mounts, **changes):
    broken = service(mounts=mounts, **changes)
    return _plan.Plan(
        folder=folder, root=root(broken), service=broken, settings=Settings(port=8000),
        engine=CliEngine(), dependencies=(), images={"api": "image"},
    )  # fmt: skip


def names(tmp_path):
    folder = tmp_path / "binds"
    folder.mkdir(exist_ok=True)
    return _plan.Names(trial="t1", owner={}, subnet="10.20.3.0/24", folder=folder)


def test_what_is_needed_starts_before_what_needs_it():
    api = service(depends_on=after("cache"), environment=variable("postgres://u:p@db:5432/x"))
    cache = service(name="cache", depends_on=after("init"))
    everything = root(service(name="other"), cache, service(name="init"), service(name="db"), api)
    order = [each.name for each in _plan.needed_by(everything, api)]
    assert sorted(order) == ["cache", "db", "init"]
    assert order.index("init") < order.index("cache")


def test_a_circle_of_dependencies_ends():
    api = service(depends_on=after("a"))
    a = service(name="a", depends_on=after("b"))
    b = service(name="b", depends_on=after("a", "api"))
    assert {each.name for each in _plan.needed_by(root(api, a, b), api)} == {"a", "b"}


@pytest.mark.parametrize(
    ("lifetime", "kind", "source", "expected"),
    [
        (Lifetime.NAMED, "volume", "data", (MountKind.VOLUME, "perdure-t1-data")),
        (Lifetime.NAMED, "pvc", "claim", (MountKind.VOLUME, "perdure-t1-claim")),
        (Lifetime.NAMED, "hostPath", "/var/run/docker.sock", (MountKind.VOLUME, None)),
        (Lifetime.NAMED, "bind", "../other", (MountKind.VOLUME, None)),
        (Lifetime.NAMED, "bind", "out", (MountKind.VOLUME, None)),
        (Lifetime.NAMED, "bind", "/etc", (MountKind.VOLUME, None)),
        (Lifetime.LAYER, "emptyDir", None, (MountKind.ANONYMOUS, "")),
        (Lifetime.ANONYMOUS, "volume", None, (MountKind.ANONYMOUS, "")),
        (Lifetime.TMPFS, "tmpfs", None, (MountKind.TMPFS, "")),
    ],
)
def test_a_mount_is_fresh_and_lives_as_long_as_the_deployments(
    lifetime, kind, source, expected, tmp_path
):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "out").symlink_to("/etc")
    mount = Mount(path="/data", lifetime=lifetime, kind=kind, evidence=(), source=source)
    made = _plan.service_spec(
        plan(tmp_path / "project", mount), names(tmp_path), service(mounts=(mount,)), outside=None
    )
    [found] = made.mounts
    assert found.kind is expected[0]
    assert expected[1] in (None, found.source)
    assert not found.source.startswith("/")


def test_a_bind_mount_is_a_copy_that_a_trial_may_write(tmp_path):
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "file").write_text("mine")
    mount = Mount(path="/data", lifetime=Lifetime.NAMED, kind="bind", evidence=(), source="./data")
    spec = _plan.service_spec(
        plan(project, mount), names(tmp_path), service(mounts=(mount,)), outside=None
    )
    copy = Path(spec.mounts[0].source)
    assert copy.is_relative_to(tmp_path / "binds")
    (copy / "file").write_text("theirs")
    assert (project / "data" / "file").read_text() == "mine"


def test_a_bind_mount_with_a_pipe_is_refused_and_nobody_waits(tmp_path):
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    os.mkfifo(project / "data" / "pipe")
    mount = Mount(path="/data", lifetime=Lifetime.NAMED, kind="bind", evidence=(), source="data")
    with pytest.raises(TrialImpossible, match="can't be copied"):
        _plan.service_spec(
            plan(project, mount), names(tmp_path), service(mounts=(mount,)), outside=None
        )


@pytest.mark.parametrize("path", ["../Dockerfile", "/etc/passwd", "link"])
async def test_what_lies_outside_is_not_sent_to_an_engine(path, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "link").symlink_to(tmp_path)
    for image in (
        Image(reference=None, dockerfile=path, context="."),
        Image(reference=None, dockerfile="Dockerfile", context=path),
    ):
        with pytest.raises(TrialImpossible, match="outside of the folder"):
            await _plan.build_images(CliEngine(), project, (service(image=image),), {})


def test_each_event_is_in_the_guide_with_its_contracts_and_each_contract_has_one():
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \|.*\| ([^|]+) \|$", GUIDE.read_text(), re.MULTILINE
    )
    told = {
        (name, contract)
        for names, contracts in rows
        for name in re.findall(r"`(\w+)`", names)
        for contract in re.findall(r"\b[SRC]\d", contracts)
    }
    known = {(str(need.kind), str(contract)) for contract, need in NEEDS.items()}
    known |= {(str(event), str(contract)) for contract, event in OTHERS}
    assert {contract for _, contract in known} == set(Contract)
    assert {event for event, _ in known} == set(Event)
    assert known <= told


def test_grace_is_what_the_deployment_says(tmp_path):
    assert plan(tmp_path, grace_s=Known(value=30.0)).grace_s == 30.0
    assert plan(tmp_path, grace_s=Known(value=None, question="?")).grace_s == 10.0


def test_all_of_a_settings_file_is_read():
    text = """
        service = "web"
        port = 9000
        probe = "langgraph"
        abilities = ["run"]
        stubs = ["effects", "model"]
        [environment]
        A = "{effects}"
        [process]
        argv = ["python3", "-m", "x"]
        [trial]
        steps = 7
        dependency = "db"
    """
    found = read_settings(text)
    assert (found.service, found.port, found.probe) == ("web", 9000, "langgraph")
    assert (found.stubs, found.process_argv) == (("effects", "model"), ("python3", "-m", "x"))
    assert (found.trial.steps, found.trial.dependency) == (7, "db")
    assert read_settings("") == Settings()


@pytest.mark.parametrize(
    "text",
    [
        "a = 1\n" * 2,
        "service = 3",
        "port = 70000",
        "port = true",
        'probe = "x"',
        "command = 'x'",
        "command = [1]",
        'abilities = ["fly"]',
        'stubs = ["x"]',
        "environment = 1",
        "[environment]\nA = 1",
        "[process]\nrun = 1",
        "[trial]\nsteps = '1'",
        "[trial]\nsteps = 1e12",
        "[trial]\nsteps = nan",
        "[trial]\ndependency = 1",
        "x = " + "[" * 5000,
        "#" * 70_000,
    ],
)
def test_a_settings_file_that_is_wrong_is_named_and_why(text):
    with pytest.raises(SettingInvalid, match=r"^perdure.inject.toml can't be used: "):
        read_settings(text)
