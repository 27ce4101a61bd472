"""R1 on facts written by hand."""

import pytest

from perdure.contracts.code.facts import Drain
from perdure.contracts.deployment.facts import Image, Signal
from perdure.contracts.evidence import Known
from perdure.contracts.findings import Contract, RootKind, Verdict
from perdure.contracts.rules import RULES
from tests.contracts.making import at, code, root, service, start, variable

V, H, U = Verdict.VIOLATED, Verdict.HELD, Verdict.UNDECIDED
LANGGRAPH = Image(reference="langchain/langgraph-api:3.12", catalog="langgraph-api")


def judged(own, facts=None, kind=RootKind.COMPOSE):
    return RULES[Contract.R1](own, facts or code(), root(own, kind=kind))


def drain(seconds, what="the drain of workers"):
    return Drain(seconds=Known(value=seconds, evidence=(at("settings.py", 5),)), what=what)


def grace(seconds, **changes):
    return service(grace_s=Known(value=seconds, evidence=(at("compose.yaml", 8),)), **changes)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (service(start=start("gunicorn app:app")), V),
        (service(start=start("gunicorn --graceful-timeout 5 app:app")), H),
        (service(start=start("gunicorn --graceful-timeout=120 app:app")), V),
        (grace(40.0, start=start("gunicorn app:app")), H),
        (service(start=start("hypercorn app:app")), H),
        (service(start=start("uvicorn app:app")), U),
        (service(start=start("uvicorn --timeout-graceful-shutdown 20 app:app")), V),
        (service(start=start("uvicorn --timeout-graceful-shutdown 5 app:app")), H),
        (service(environment=variable("UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN", "60")), V),
        (service(start=start("langgraph dev")), H),
        (service(image=LANGGRAPH, start=None), V),
        (grace(200.0, image=LANGGRAPH, start=None), H),
        (
            service(
                image=LANGGRAPH,
                start=None,
                environment=variable("BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS", "4"),
            ),
            H,
        ),
        (service(start=start("node server.js")), U),
    ],
)
def test_the_window_of_a_server_against_the_grace(own, expected):
    assert judged(own).verdict is expected


def test_what_a_hook_takes_is_part_of_the_grace():
    own = grace(30.0, pre_stop_s=Known(value=15.0, evidence=(at("deploy.yaml", 12),)))
    found = judged(own, code(drains=(drain(20.0),)))
    assert found.verdict is V
    assert at("deploy.yaml", 12) in found.evidence


def test_a_hook_of_unknown_length_is_a_question_where_the_rest_fits():
    unsaid = Known(value=None, evidence=(at("deploy.yaml", 12),), question="How long is it?")
    bounded = start("gunicorn app:app")
    found = judged(grace(60.0, pre_stop_s=unsaid, start=bounded))
    assert (found.verdict, found.question) == (U, "How long is it?")
    assert judged(grace(10.0, pre_stop_s=unsaid, start=bounded)).verdict is V


def test_a_small_margin_is_a_warning():
    own = grace(30.0, start=start("gunicorn app:app"))
    found = judged(own)
    assert (found.verdict, len(found.warnings)) == (H, 1)


def test_a_drain_of_the_code_counts_though_the_server_has_no_bound():
    assert judged(service(), code(drains=(drain(30.0),))).verdict is V
    assert judged(service(), code(drains=(drain(5.0),))).verdict is U


def test_a_bound_of_uvicorn_in_the_code_is_its_bound():
    facts = code(drains=(drain(5.0, "the graceful shutdown of uvicorn"),))
    assert judged(service(), facts).verdict is H


def test_a_signal_that_never_arrives_masks_it():
    own = service(start=start(signal=Signal.LOST))
    found = judged(own, code(drains=(drain(30.0),)))
    assert found.verdict is U
    assert found.summary.startswith("masked by R2")


def test_a_dockerfile_alone_has_no_grace():
    found = judged(service(start=start("gunicorn app:app")), kind=RootKind.DOCKERFILE)
    assert found.verdict is U
    assert found.question


def test_an_unknown_setting_is_its_question():
    asked = Drain(seconds=Known(value=None, question="What is DRAIN?"), what="the drain")
    assert (
        judged(service(start=start("python run.py")), code(drains=(asked,))).question
        == "What is DRAIN?"
    )


def test_the_repair_names_the_setting_of_the_platform():
    assert "stop_grace_period: 190s" in judged(service(image=LANGGRAPH, start=None)).repair
    pod = service(image=LANGGRAPH, start=None, controller="Deployment")
    assert "terminationGracePeriodSeconds: 190" in judged(pod).repair
