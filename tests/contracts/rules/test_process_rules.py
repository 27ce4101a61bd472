"""R2, R4 and R5: from facts to verdicts."""

import pytest
from msgspec.structs import replace

from perdure.contracts.code.facts import ARQ_WAITS, Drain
from perdure.contracts.deployment.facts import Image, Process, Signal, Update
from perdure.contracts.evidence import Confidence, Known
from perdure.contracts.findings import RootKind, Verdict
from perdure.contracts.rules._restart import judge as judge_restart
from perdure.contracts.rules._signal import judge as judge_signal
from perdure.contracts.rules._update import judge as judge_update
from tests.contracts.making import at, code, root, service, start

V, H, U, NA = (
    Verdict.VIOLATED,
    Verdict.HELD,
    Verdict.UNDECIDED,
    Verdict.NOT_APPLICABLE,
)


def signal(facts=None, **changes):
    found = service(**changes)
    return judge_signal(found, facts or code(), root(found))


def restart(kind=RootKind.COMPOSE, *, strict=False, **changes):
    found = service(**changes)
    return judge_restart(found, code(), root(found, kind=kind), strict=strict)


def update(*, strict=False, **changes):
    found = service(**changes)
    return judge_update(found, code(), root(found), strict=strict)


def test_a_signal_that_arrives():
    found = signal()
    assert (found.verdict, found.question, found.repair) == (H, None, None)


@pytest.mark.parametrize(("seconds", "waits"), [(None, False), (0.0, False), (20.0, True)])
def test_arq_cancels_its_jobs_unless_it_is_told_to_wait(seconds, waits):
    drain = Drain(seconds=Known(value=seconds), what=ARQ_WAITS)
    facts = code(drains=() if seconds is None else (drain,))
    found = signal(facts, start=start("arq app.jobs.Settings"))
    assert found.verdict is H
    assert ("can finish" in found.summary, bool(found.warnings)) == (waits, not waits)


def test_a_signal_that_is_lost_has_a_repair():
    found = signal(start=start(signal=Signal.LOST, shape="shell_dash"))
    assert found.verdict is V
    assert "exec form" in found.repair


def test_an_init_changes_the_story_and_not_the_verdict():
    found = signal(start=start(signal=Signal.LOST, shape="shell_dash", has_init=True))
    assert found.verdict is V
    assert found.warnings


@pytest.mark.parametrize(
    ("shape", "handlers", "verdict"),
    [
        ("python_program", (), U),
        ("python_program", (at("app.py", 9, "uvicorn.run"),), H),
        ("python_no_handler", (), V),
        ("python_no_handler", (at("app.py", 9, "signal.signal"),), H),
        ("python_program_child", (), U),
    ],
)
def test_a_python_program_is_judged_by_its_code(shape, handlers, verdict):
    lost = Signal.LOST if shape == "python_no_handler" else Signal.UNKNOWN
    found = signal(code(handlers=handlers), start=start("python run.py", lost, shape=shape))
    assert found.verdict is verdict
    assert (found.question is None) is (verdict is not U)


def test_what_ends_by_itself_needs_no_signal():
    assert signal(is_one_shot=True).verdict is NA


def test_an_image_that_nobody_can_look_into_is_a_question():
    found = signal(start=None)
    assert found.verdict is U
    assert "ENTRYPOINT" in found.question


@pytest.mark.parametrize(
    ("name", "verdict"), [("SIGTERM", H), ("SIGINT", H), ("SIGQUIT", V), ("SIGKILL", V), ("15", H)]
)
def test_other_stop_signals(name, verdict):
    assert signal(stop_signal=Known(value=name, evidence=(at("Dockerfile", 4),))).verdict is verdict


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        ("no", V),
        ("always", H),
        ("unless-stopped", H),
        ("on-failure", H),
        ("controller", H),
        ("swarm_any", H),
        (None, U),
    ],
)
def test_restart_policies(policy, verdict):
    question = None if policy else "What is the value of POLICY?"
    assert restart(restart=Known(value=policy, question=question)).verdict is verdict


def test_few_retries_are_worth_a_warning():
    assert len(restart(restart=Known(value="on-failure:2")).warnings) == 2
    assert len(restart(restart=Known(value="on-failure:9")).warnings) == 1
    assert restart().warnings == ()


def test_a_reloader_lives_on_when_its_server_crashes():
    begun = start(options={"reload": Known(value="true", evidence=(at("Dockerfile", 9),))})
    found = restart(start=begun)
    assert (found.verdict, len(found.warnings)) == (H, 1)
    found = restart(start=begun, strict=True)
    assert (found.verdict, found.confidence) == (V, Confidence.INFERRED)
    assert found.evidence[0].file == "Dockerfile"
    assert "without reload" in found.repair


def test_a_server_in_the_background_dies_unnoticed():
    found = restart(start=start(beside=(at("start.sh", 4, "in the background: worker"),)))
    assert found.verdict is V
    assert found.evidence[0].file == "start.sh"
    never = Known(value="no", evidence=(at("compose.yaml", 3),))
    assert "stays down" in restart(start=start(beside=(at(),)), restart=never).summary


@pytest.mark.parametrize(
    ("argv", "changes", "verdict"),
    [
        ("celery -A app worker", {"is_without_ports": True}, NA),
        ("celery -A app worker", {"is_without_ports": False}, V),
        ("uvicorn app:app", {"is_without_ports": True}, V),
    ],
)
def test_an_update_of_a_worker_keeps_nobody_waiting(argv, changes, verdict):
    rolling = Update(mechanism="kubernetes_rolling", evidence=(at("k8s.yaml", 1),))
    found = update(start=start(argv), update=rolling, controller="Deployment", **changes)
    assert found.verdict is verdict


def test_an_update_of_a_pod_of_others_that_nothing_asks_is_a_question():
    image = Image(reference="example/stress:latest")
    own = {"controller": "Deployment", "is_without_ports": True, "start": start("stress --vm 1")}
    pod = rolling(has_readiness=False, **own)
    assert update(**{**pod, "image": image}).verdict is U
    assert update(**pod).verdict is V
    assert update(**{**pod, "image": image, "aliases": ("stress",)}).verdict is V


@pytest.mark.parametrize(("name", "verdict"), [("SIGTERM", H), ("SIGINT", U), ("SIGQUIT", U)])
def test_gunicorn_finishes_on_one_signal_only(name, verdict):
    said = Known(value=name, evidence=(at("fly.toml", 2),))
    assert signal(start=start("gunicorn app:app"), stop_signal=said).verdict is verdict


def test_a_trap_of_one_signal_says_nothing_of_another():
    said = Known(value="SIGINT", evidence=(at("fly.toml", 2),))
    begun = start(shape="script_trap")
    assert signal(start=begun).verdict is H
    assert signal(start=begun, stop_signal=said).verdict is U


def test_a_server_that_dies_unseen_is_not_restarted():
    found = restart(start=start(unwatched=(at("start.sh", 3),)))
    assert found.verdict is V
    assert found.evidence[0].file == "start.sh"


@pytest.mark.parametrize("changes", [{"is_one_shot": True}, {"is_interactive": True}])
def test_what_nobody_waits_for_needs_no_restart(changes):
    assert restart(restart=Known(value="no"), **changes).verdict is NA
    assert restart(restart=Known(value="no"), controller="Job").verdict is NA


def rolling(unavailable=0, replicas=1, **changes):
    given = Update(
        mechanism="kubernetes_rolling",
        evidence=(at("k8s.yaml", 2),),
        max_unavailable=Known(value=unavailable, evidence=(at("k8s.yaml", 8),)),
        replicas=Known(value=replicas),
    )
    return {
        "update": given,
        "has_readiness": True,
        "health": (at("k8s.yaml", 20),),
        "controller": "Deployment",
        **changes,
    }


ROLLING = {
    "ready before the old one goes": (rolling(), H),
    "no readiness probe": (rolling(has_readiness=False), V),
    "the only pod may be missing": (rolling(unavailable=1), V),
    "one of five may be missing": (rolling(unavailable=1, replicas=5), H),
    "a StatefulSet of one": (rolling(controller="StatefulSet"), V),
    "a StatefulSet of two": (rolling(controller="StatefulSet", replicas=2), H),
    "a port of the node": (rolling(fixed_ports=(at("k8s.yaml", 9),)), V),
    "replicas unknown": (rolling(replicas=None), U),
    "scaled from nothing": (rolling(replicas=0), H),
    "scaled from nothing, and the one may be missing": (rolling(unavailable=1, replicas=0), V),
}


@pytest.mark.parametrize(("changes", "verdict"), ROLLING.values(), ids=ROLLING.keys())
def test_rolling_updates(changes, verdict):
    found = update(**changes)
    assert found.verdict is verdict
    assert (found.question is not None) is (verdict is U)
    assert (found.repair is not None) is (verdict is V)


def test_recreate_stops_all_first():
    given = Update(mechanism="kubernetes_recreate", evidence=(at("k8s.yaml", 7),))
    assert update(update=given).verdict is V


def test_compose_is_undecided_unless_strict():
    given = Update(mechanism="compose", evidence=(at("compose.yaml", 3),))
    assert update(update=given).verdict is U
    assert update(update=given, strict=True).verdict is V


@pytest.mark.parametrize(
    ("order", "replicas", "health", "verdict"),
    [
        ("stop-first", 1, True, V),
        ("stop-first", 2, True, H),
        ("stop-first", 2, False, U),
        ("start-first", 1, False, V),
        ("start-first", 1, True, H),
    ],
)
def test_swarm(order, replicas, health, verdict):
    given = Update(mechanism="swarm", evidence=(at("compose.yaml", 9),), order=order)
    found = update(
        update=given,
        replicas=Known(value=replicas),
        health=(at("compose.yaml", 12),) if health else (),
    )
    assert found.verdict is verdict


def test_nothing_that_updates_is_not_applicable():
    assert update(update=None).verdict is NA


def test_a_server_without_a_name_is_told_of_all_the_same():
    nameless = replace(start(), server=None, processes=())
    assert signal(start=nameless).verdict is H
    assert isinstance(start().server, Process)
