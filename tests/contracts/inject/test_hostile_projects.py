"""What a hostile project says reaches no engine as an option, a mount of the host or a program."""

import shutil
import sys
from pathlib import Path

import pytest

from perdure.clock import system_services
from perdure.contracts.deployment import read_roots
from perdure.contracts.deployment.facts import Lifetime, Mount
from perdure.contracts.files import Project
from perdure.contracts.findings import Contract
from perdure.contracts.inject import _plan
from perdure.contracts.inject._execute import execute
from perdure.contracts.inject._folder import Wanted, prove_folder
from perdure.contracts.inject.engines import (
    CliEngine,
    ContainerSpec,
    MountKind,
    MountSpec,
    ProcessEngine,
    _allowed,
)
from perdure.contracts.inject.prove import chosen
from perdure.contracts.inject.settings import Settings, read_settings
from perdure.errors import EngineFailed, InjectionError, SettingInvalid, TrialImpossible
from tests.contracts.inject.daemon import Daemon
from tests.contracts.inject.kit import service
from tests.contracts.inject.test_plan import names, plan

needs_client = pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker")


def spec(**changes):
    return ContainerSpec(**({"name": "perdure-t", "labels": {}, "image": "python:3.12"} | changes))


def volume(path, kind=MountKind.VOLUME, source="perdure-t1-v"):
    return {"mounts": (MountSpec(kind=kind, path=path, source=source),)}


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    with Daemon(tmp_path) as found:
        monkeypatch.setenv("DOCKER_HOST", found.address)
        yield found


COMPOSE = """\
services:
  app:
    image: {image}
    {more}
volumes: {{v: {{}}}}
"""

ESCAPES = {
    "an image that is an option": ("'--privileged'", 'entrypoint: ["sh","alpine","-c","id"]'),
    "an image with a host's volume": ("'--volume=/:/host'", 'command: ["alpine"]'),
    "a target that names the host": ("a", 'volumes: [{type: volume, target: "/:/host"}]'),
    "a target with fields": ("a", 'volumes: ["v:/data,type=bind,source=/"]'),
    "a long target with fields": (
        "a", 'volumes: [{type: volume, source: v, target: "/d,type=bind,source=/"}]',
    ),
    "a target with a quote": ("a", "volumes: [{type: volume, source: v, target: '/a\"b'}]"),
    "a tmpfs with options": ("a", 'tmpfs: ["/data:exec,dev"]'),
    "a variable's name": ("a", 'environment: {"A=B": c}'),
    "a variable of two lines": ("a", 'environment: {"A": "b\\nLD_PRELOAD=/x"}'),
    "a comment for a variable": ("a", 'environment: {"#A": "b"}'),
    "a NUL": ("a", 'environment: {"A": "b\\0"}'),
    "half of a character": ("a", 'environment: {"A": "\\ud800"}'),
    "a signal": ("a", "stop_signal: '--privileged'"),
    "a NUL in a command": ("a", 'command: ["a\\0"]'),
}  # fmt: skip


@needs_client
@pytest.mark.parametrize("said", ESCAPES)
async def test_nothing_that_shows_the_host_comes_out_of_a_project(said, daemon, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    image, more = ESCAPES[said]
    (folder / "compose.yaml").write_text(COMPOSE.format(image=image, more=more))
    services = system_services()
    wanted = Wanted(
        folder=folder, contract=Contract.R2, output=tmp_path / "out", service="app", repetitions=1
    )
    try:
        proof = await prove_folder(wanted, CliEngine(), services)
    except TrialImpossible:
        assert daemon.asked == ()
    else:  # a reader has left it out
        assert said in ("a tmpfs with options", "a NUL", "half of a character"), proof.text
        for path, body in daemon.asked:
            if "/containers/create" in path:
                harmless(body)


def harmless(body):
    host = body["HostConfig"]
    assert host["Privileged"] is False
    assert not host["Binds"]
    assert not host["PidMode"]
    assert all(each["Type"] != "bind" for each in host.get("Mounts") or ())


@needs_client
@pytest.mark.parametrize(
    "changes",
    [
        {"image": "--privileged"},
        {"image": "-v/:/host"},
        {"image": "Python"},
        {"image": "a:" + "b" * 200},
        {"image": ""},
        volume("/:/host", MountKind.ANONYMOUS),
        volume("/:/host", MountKind.TMPFS),
        volume("/data,type=bind,source=/etc"),
        volume('/a"\nb'),
        volume("data"),
        volume("/a/../../b"),
        volume("/data", source="v,type=bind"),
        volume("/data", MountKind.BIND, "/etc"),
        volume("/data", MountKind.BIND, "/"),
        {"restart": "no --privileged"},
        {"restart": "--privileged"},
        {"stop_signal": "--privileged"},
        {"name": "--privileged"},
        {"network": "--privileged"},
        {"network": "container:other"},
        {"network": "host,alias=a"},
        {"aliases": ("a b",), "network": "n"},
        {"hosts": {"a:1.2.3.4 b": "10.20.0.2"}, "network": "n"},
        {"workdir": "relative"},
        {"environment": {"A=B": "c"}},
        {"environment": {"": "c"}},
        {"environment": {"A": "b\nC=d"}},
        {"environment": {"A": "b\0"}},
    ],
)
async def test_an_engine_checks_by_itself_and_says_what_it_does_not_take(changes, daemon):
    with pytest.raises(TrialImpossible, match="is not given to an engine"):
        await CliEngine().make(spec(**changes))
    assert daemon.asked == ()


@needs_client
async def test_words_after_an_image_are_those_of_its_command(daemon):
    await CliEngine().make(spec(argv=("--privileged", "--volume=/:/host", "--", "--pid=host")))
    harmless(daemon.created)
    assert daemon.created["Entrypoint"] == ["--privileged"]
    assert daemon.created["Cmd"] == ["--volume=/:/host", "--", "--pid=host"]
    assert daemon.created["Image"] == "python:3.12"


@needs_client
async def test_variables_arrive_as_they_are_and_not_in_the_environment_of_the_client(
    daemon, tmp_path
):
    trap = tmp_path / "bin" / "docker"
    trap.parent.mkdir()
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path / 'trapped'}\necho {'c' * 64}\n")
    trap.chmod(0o755)
    said = {
        "PATH": f"{trap.parent}:bin:/bin",
        "DOCKER_HOST": "tcp://127.0.0.1:1",
        "DOCKER_CONFIG": str(tmp_path),
        "LD_PRELOAD": "/evil.so",
        "QUOTED": " 'a' \"b\" # c=d $HOME \\n ",
        "EMPTY": "",
    }
    await CliEngine().make(spec(environment=said))
    assert not (tmp_path / "trapped").exists()
    assert daemon.created["Env"] == [f"{name}={value}" for name, value in said.items()]


async def test_a_program_of_the_folder_that_we_work_in_is_not_the_engine(tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "docker").write_text("#!/bin/sh\ntouch trapped\n")
        (folder / "docker").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ":.:bin")
    with pytest.raises(OSError, match="there is no program docker"):
        await execute(("docker", "version"))
    assert not (tmp_path / "trapped").exists()


@needs_client
async def test_words_that_no_system_takes_are_an_error_of_the_engine(daemon):
    with pytest.raises(EngineFailed, match="create"):
        await CliEngine().make(spec(argv=("sh", "a\0b")))
    with pytest.raises(EngineFailed, match="create"):
        await CliEngine().make(spec(argv=("sh", "a" * 200_000)))
    with pytest.raises(EngineFailed, match="exec"):
        await CliEngine().execute("c" * 64, ("\ud800",))
    assert daemon.asked == ()


@pytest.mark.parametrize(
    "reference",
    [
        "python", "python:3.12-slim", "a.b-c/d_e__f/g--h:V1.2-x", "localhost:5000/a",
        "REGISTRY.example/a/b", f"a@sha256:{'0' * 64}", f"a:b@sha256:{'f' * 64}",
        f"sha256:{'a' * 64}",
    ],
)  # fmt: skip
def test_references_of_images_are_taken(reference):
    assert _allowed.image(reference) == reference


def test_a_link_in_a_copy_leads_no_mount_out_of_it(tmp_path):
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / "data").mkdir(parents=True)
    (outside / "secret").mkdir(parents=True)
    (project / "data" / "link").symlink_to(outside)
    sources = ("data", "data/link/secret", "data/later/secret")
    mounts = tuple(
        Mount(path=f"/{n}", lifetime=Lifetime.NAMED, kind="bind", evidence=(), source=source)
        for n, source in enumerate(sources)
    )
    for _ in range(2):
        made = _plan.service_spec(
            plan(project), names(tmp_path), service(mounts=mounts), outside=None
        ).mounts
        for each in made:
            path = Path(each.source)
            assert each.kind is MountKind.VOLUME or path.resolve() == path
            assert not path.resolve().is_relative_to(outside)
        # What a container may do to the first one, while the trial goes on:
        later = Path(made[0].source) / "later"
        if not later.exists():
            later.symlink_to(outside)


@needs_client
async def test_a_trial_mounts_its_own_copies(daemon, tmp_path):
    folder = tmp_path / "perdure-binds-x"
    (folder / "copy").mkdir(parents=True)
    (folder / "link").symlink_to("/etc")
    await CliEngine().make(spec(**volume("/data", MountKind.BIND, str(folder / "copy"))))
    [mount] = daemon.created["HostConfig"]["Mounts"]
    assert (mount["Type"], mount["Source"]) == ("bind", str(folder / "copy"))
    with pytest.raises(TrialImpossible, match="own copies"):
        await CliEngine().make(spec(**volume("/data", MountKind.BIND, str(folder / "link"))))


async def test_a_process_has_the_projects_variables_and_our_secrets_stay_ours(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OUR_SECRET", "secret")
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(
        spec(argv=(sys.executable,), environment={"-S": "x", "PATH": "/nowhere", "A": "b\nc"})
    )
    shown = await engine.execute(
        container, (sys.executable, "-c", "import os; print(dict(os.environ))")
    )
    await engine.remove(container)
    assert shown.exit_code == 0, shown.output
    assert "'A': 'b\\nc'" in shown.output
    assert "'-S': 'x'" in shown.output
    assert "OUR_SECRET" not in shown.output


@pytest.mark.parametrize("environment", [{"A=B": "c"}, {"A": "b\0"}, {"": "a"}, {"A": "\ud800"}])
async def test_a_process_with_impossible_variables_is_refused(environment, tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    with pytest.raises(InjectionError):
        await engine.make(spec(argv=("true",), environment=environment))


@pytest.mark.parametrize("said", ["99", "9" * 5000, "²", "SIGNOTHING"])
async def test_a_signal_that_there_is_not_is_no_error_of_ours(said, tmp_path):
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(spec(argv=("sleep", "60"), stop_signal=said))
    await engine.start(container)
    await engine.stop(container, 5.0)
    assert (await engine.state(container)).exit_code == 143
    await engine.remove(container)


async def test_a_link_of_the_project_is_not_written_through(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "project" / "outside.py").symlink_to(tmp_path / "mine")
    engine = ProcessEngine(system_services().clock, tmp_path)
    container = await engine.make(
        spec(argv=("true",), folder=str(tmp_path / "project"), files={"/outside.py": "theirs"})
    )
    await engine.remove(container)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_name_that_is_none_of_a_host_has_no_address_there(tmp_path):
    odd = service(name="pod/api:1.2.3.4")
    made = _plan.service_spec(plan(tmp_path, name=odd.name), names(tmp_path), odd, outside=None)
    assert made.aliases == ()
    assert set(made.hosts) == {"perdure-outside"}


def test_a_deployment_read_from_its_file_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "compose.yaml").write_text(COMPOSE.format(image="'--privileged'", more=""))
    _, broken = chosen(
        read_roots(Project(tmp_path), assume={}), Settings(), root=None, service="app"
    )
    with pytest.raises(TrialImpossible, match="no reference"):
        _plan.refuse_unsafe(plan(tmp_path, image=broken.image))


@pytest.mark.parametrize("text", ["port = 1" + "0" * 5000, "port = ["])
def test_settings_that_can_not_be_read_are_refused(text):
    with pytest.raises(SettingInvalid):
        read_settings(text)
