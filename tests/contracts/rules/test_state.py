"""S1, S2, S3 on facts written by hand."""

import pytest
from msgspec.structs import replace

from perdure.contracts.code.facts import Degrade, Medium, Role
from perdure.contracts.deployment.facts import Image, Lifetime
from perdure.contracts.evidence import Confidence, Known
from perdure.contracts.findings import Contract, RootKind, Verdict
from perdure.contracts.rules import RULES
from tests.contracts.making import at, code, database, mount, root, service, site, start, variable

V, H, U, NA = (
    Verdict.VIOLATED,
    Verdict.HELD,
    Verdict.UNDECIDED,
    Verdict.NOT_APPLICABLE,
)


def judged(contract, own, facts, *others, kind=RootKind.COMPOSE):
    return RULES[contract](own, facts, root(own, *others, kind=kind))


def verdicts(own, facts, *others):
    return [judged(c, own, facts, *others).verdict for c in (Contract.S1, Contract.S2)]


def file(location, **changes):
    return site(Medium.FILE, location=location, **changes)


@pytest.mark.parametrize(
    ("mounts", "location", "expected"),
    [
        ((), "checkpoints.db", [H, V]),
        ((mount("/app/data"),), "data/checkpoints.db", [H, H]),
        ((mount("/app/data"),), "checkpoints.db", [H, V]),
        ((mount("/app/data"),), "/app/database/x.db", [H, V]),
        ((mount("/app"), mount("/app/tmp", Lifetime.TMPFS, "tmpfs")), "tmp/x.db", [V, V]),
        ((mount("/data", Lifetime.ANONYMOUS),), "/data/x.db", [H, V]),
        ((mount("/data", Lifetime.LAYER, "emptyDir"),), "/data/x.db", [H, V]),
        ((mount("/data", Lifetime.ANONYMOUS, "image_volume"), mount("/data")), "/data/x", [H, H]),
        ((mount("/etc/x", Lifetime.NAMED, "configMap"),), "/etc/x/y.db", [H, V]),
        ((mount("/app/data"),), "sqlite:///data/x.db", [H, H]),
        ((mount("/data"),), "sqlite+aiosqlite:////data/x.db?mode=rw", [H, H]),
        ((mount("/" + "root/.agent"),), "~/.agent/x.db", [H, H]),
        ((), ":memory:", [V, V]),
        ((), "file:x?mode=memory&cache=shared", [V, V]),
    ],
)
def test_a_file_lives_as_long_as_what_is_mounted_there(mounts, location, expected):
    assert verdicts(service(mounts=mounts), code(file(location))) == expected


def test_a_file_that_may_be_anywhere_is_held_by_what_is_usual_only():
    nowhere = code(file(None))
    found = judged(Contract.S1, service(), nowhere)
    assert (found.verdict, found.confidence) == (H, Confidence.INFERRED)
    told = service(environment=variable("CHECKPOINT_DB", ":memory:"))
    found = judged(Contract.S1, told, nowhere)
    assert found.verdict is U
    assert "CHECKPOINT_DB" in found.question


def test_home_is_that_of_the_environment():
    own = service(mounts=(mount("/home-of-agent"),), environment=variable("HOME", "/home-of-agent"))
    assert verdicts(own, code(file("~/x.db"))) == [H, H]


def test_memory_is_lost_and_the_story_names_both_lines():
    found = judged(Contract.S1, service(), code(site()))
    assert (found.verdict, found.confidence) == (V, Confidence.PROVED)
    assert [(e.file, e.line) for e in found.evidence] == [("app.py", 12), ("app.py", 30)]
    assert "threads and paused runs are lost when the container restarts" in found.summary
    assert found.repair


def test_saver_and_store_are_judged_apart_and_the_worse_decides():
    facts = code(file("/data/x.db"), site(role=Role.STORE))
    found = judged(Contract.S2, service(mounts=(mount("/data"),)), facts)
    assert found.verdict is V
    assert found.summary.startswith("memories are lost when the container is replaced")
    assert "threads and paused runs are kept" in found.summary


def test_what_nobody_serves_is_no_evidence():
    facts = code(site(is_served=False), site(chosen=Known(value=False)), uses_threads=())
    assert verdicts(service(), facts) == [NA, NA]


def test_what_may_be_served_is_a_question():
    found = judged(Contract.S1, service(), code(site(is_served=None, class_name="MemorySaver")))
    assert found.verdict is U
    assert found.question == "Is the graph with this MemorySaver one that the service serves?"
    bare = site(is_served=None, class_name="omitted", medium=Medium.NONE)
    question = "Does the service serve this graph, which is compiled without a saver?"
    assert judged(Contract.S1, service(), code(bare)).question == question


def test_an_open_choice_between_kept_and_lost_is_its_question():
    choice = Known(value=None, question="What is SAVER?")
    facts = code(site(chosen=choice), site(Medium.POSTGRES, chosen=choice))
    found = judged(Contract.S1, service(), facts)
    assert (found.verdict, found.question) == (U, "What is SAVER?")


def test_an_open_choice_whose_every_branch_loses_is_a_violation():
    choice = Known(value=None, question="What is SAVER?")
    facts = code(site(chosen=choice), file(":memory:", chosen=choice))
    assert judged(Contract.S1, service(), facts).verdict is V


def test_a_declared_default_is_said_to_be_one():
    chosen = Known(
        value=True, confidence=Confidence.DECLARED_DEFAULT, evidence=(at(".env.example", 4),)
    )
    found = judged(Contract.S1, service(), code(site(chosen=chosen)))
    assert found.confidence is Confidence.DECLARED_DEFAULT
    assert at(".env.example", 4) in found.evidence


def test_a_fallback_beside_a_durable_saver_is_the_business_of_s0():
    fallback = site(evidence=(at("app.py", 40),))
    degrade = Degrade(
        evidence=(at("app.py", 39), at("app.py", 40)), becomes=Medium.MEMORY, cause="failed"
    )
    facts = code(site(Medium.POSTGRES), fallback, degrades=(degrade,))
    assert verdicts(service(), facts) == [H, H]


def test_histories_in_memory_are_a_question_where_a_saver_is():
    history = site(role=Role.HISTORY)
    assert verdicts(service(), code(history)) == [V, V]
    assert verdicts(service(), code(history, site(Medium.POSTGRES))) == [U, U]
    open_one = replace(history, is_served=None)
    assert verdicts(service(), code(open_one, site(Medium.POSTGRES))) == [H, H]
    kept = replace(history, class_name="the dict sessions")
    assert verdicts(service(), code(kept, site(Medium.POSTGRES))) == [V, V]
    asked = replace(kept, is_served=None)
    assert verdicts(service(), code(asked, site(Medium.POSTGRES))) == [U, U]


def test_no_saver_and_no_threads_is_not_applicable():
    assert verdicts(service(), code(uses_threads=())) == [NA, NA]


def test_a_graph_without_checkpointer_that_gets_threads_is_inferred():
    found = judged(Contract.S1, service(), code(site(Medium.NONE)))
    assert (found.verdict, found.confidence) == (V, Confidence.INFERRED)
    assert judged(Contract.S1, service(), code(site(Medium.NONE), uses_threads=())).verdict is NA


def test_code_that_was_not_found_is_a_question():
    facts = code(uses_threads=(), question="Which file does the image start?")
    found = judged(Contract.S1, service(), facts)
    assert (found.verdict, found.question) == (U, "Which file does the image start?")


def saver(location="postgresql://u@db:5432/x"):
    return code(site(Medium.POSTGRES, location=location))


@pytest.mark.parametrize(
    ("reference", "path", "expected"),
    [
        ("postgres:16", "/var/lib/postgresql/data", H),
        ("pgvector/pgvector:pg16", "/var/lib/postgresql/data", H),
        ("postgres:18", "/var/lib/postgresql", H),
        ("postgres:18-alpine", "/var/lib/postgresql/data", V),
        ("pgvector/pgvector:0.8.1-pg18", "/var/lib/postgresql/data", V),
        ("postgres:16", "/data", V),
        ("bitnami/postgresql:16", "/bitnami/postgresql", H),
        ("bitnami/postgresql:16", "/var/lib/postgresql/data", V),
    ],
)
def test_a_database_of_the_deployment_keeps_its_data_or_not(reference, path, expected):
    db = database(reference=reference, mounts=(mount(path),))
    assert judged(Contract.S2, service(), saver(), db).verdict is expected


def test_pgdata_moves_the_folder():
    db = database(environment=variable("PGDATA", "/pg/data"), mounts=(mount("/pg"),))
    assert judged(Contract.S2, service(), saver(), db).verdict is H


def test_an_image_without_a_version_is_warned_of():
    db = database(reference="postgres", mounts=(mount("/var/lib/postgresql/data"),))
    found = judged(Contract.S2, service(), saver(), db)
    assert found.verdict is H
    assert "names no version" in found.warnings[0]


def test_a_database_without_a_volume_is_named_with_its_line():
    found = judged(Contract.S2, service(), saver(), database())
    assert found.verdict is V
    assert ("compose.yaml", 20) in [(e.file, e.line) for e in found.evidence]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("postgresql://u@db.example.com/x", Confidence.PROVED),
        (None, Confidence.INFERRED),
    ],
)
def test_a_database_elsewhere_is_somebody_elses_to_keep(location, expected):
    found = judged(Contract.S2, service(), saver(location))
    assert (found.verdict, found.confidence) == (H, expected)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_database_on_the_containers_own_host_is_a_question(host):
    facts = code(site(Medium.REDIS, location=f"redis://{host}:6379/0"))
    assert verdicts(service(), facts) == [U, U]
    many = service(replicas=Known(value=2, evidence=(at("compose.yaml", 9),)))
    assert judged(Contract.S3, many, facts).verdict is U
    beside = database("cache", "redis", "redis:7", mounts=(mount("/data"),))
    assert verdicts(service(), facts, beside) == [H, H]
    lost = database("cache", "redis", "redis:7")
    assert verdicts(service(), facts, lost) == [H, U]
    told = service(environment=variable("CACHE_URL", "redis://cache:6379"))
    assert verdicts(told, facts, lost) == [H, V]


def test_one_of_two_databases_without_an_address_is_a_question():
    found = judged(Contract.S2, service(), saver(None), database(), database("other"))
    assert found.verdict is U


def test_a_dockerfile_alone_does_not_say_what_is_mounted():
    own = service()
    facts = code(file("/data/x.db"))
    assert judged(Contract.S2, own, facts, kind=RootKind.DOCKERFILE).verdict is U
    assert judged(Contract.S2, own, code(site()), kind=RootKind.DOCKERFILE).verdict is V


def several(replicas=1, workers=1, **changes):
    known = {
        "replicas": Known(value=replicas, evidence=(at("compose.yaml", 9),)),
        "workers": Known(value=workers, evidence=(at("Dockerfile", 9),)),
    }
    return service(**{**known, **changes})


@pytest.mark.parametrize(
    ("own", "facts", "expected"),
    [
        (several(), code(site()), NA),
        (several(replicas=2), code(site()), V),
        (several(workers=4), code(site()), V),
        (several(replicas=2), saver(), H),
        (several(workers=2), code(file("/app/x.db")), H),
        (several(replicas=2), code(file("/app/x.db")), V),
        (several(replicas=2, mounts=(mount("/app"),)), code(file("x.db")), H),
        (
            several(replicas=2, mounts=(mount("/app", access_mode="ReadWriteOnce"),)),
            code(file("x.db")),
            V,
        ),
        (
            several(replicas=2, mounts=(mount("/app", access_mode="ReadWriteMany"),)),
            code(file("x.db")),
            V,
        ),
        (several(replicas=2, mounts=(mount("/app", is_shared=False),)), code(file("x.db")), V),
        (several(replicas=2, mounts=(mount("/app", kind="hostPath"),)), code(file("x.db")), U),
    ],
)
def test_what_several_copies_see_of_each_other(own, facts, expected):
    assert judged(Contract.S3, own, facts).verdict is expected


def test_one_file_of_several_processes_is_warned_of():
    found = judged(Contract.S3, several(workers=2), code(file("/app/x.db")))
    assert "one at a time" in found.warnings[0]


def test_twin_services_are_replicas():
    twin = service("api-b", place=at("compose.yaml", 40))
    found = judged(Contract.S3, service(), code(site()), twin)
    assert found.verdict is V
    assert ("compose.yaml", 40) in [(e.file, e.line) for e in found.evidence]


def test_a_worker_of_the_same_image_is_no_twin():
    worker = service("worker", start=start("celery -A app.tasks"))
    assert judged(Contract.S3, service(), code(site()), worker).verdict is NA


def test_workers_of_the_code_count():
    facts = code(site(), workers=Known(value=3, evidence=(at("run.py", 8),)))
    assert judged(Contract.S3, service(), facts).verdict is V


def test_an_unknown_number_of_replicas_is_a_question():
    own = service(replicas=Known(value=None, question="How many replicas?"))
    assert judged(Contract.S3, own, code(site())).question == "How many replicas?"


def test_a_platform_that_keeps_state_in_a_database_of_the_deployment():
    platform = code(site(Medium.PLATFORM))
    own = service(image=Image(reference="langchain/langgraph-api:3.12", catalog="langgraph-api"))
    kept = database(mounts=(mount("/var/lib/postgresql/data"),))
    assert judged(Contract.S2, own, platform, kept).verdict is H
    assert judged(Contract.S2, own, platform, database()).verdict is V


def test_a_beginning_without_a_saver_does_not_count_beside_one_that_is_bound():
    none = site(Medium.NONE, survives_process=False)
    assert verdicts(service(), code(none, site(Medium.POSTGRES))) == [H, H]
    assert verdicts(service(), code(none, site())) == [V, V]
    refused = site(Medium.POSTGRES, chosen=Known(value=False))
    found = judged(Contract.S1, service(), code(none, refused))
    assert (found.verdict, found.confidence) == (H, Confidence.INFERRED)
    assert judged(Contract.S1, service(), code(none)).summary.endswith("after the request")


def test_a_graph_that_a_setting_leaves_without_a_saver_counts_beside_one_that_it_refuses():
    off = Known(value=True, confidence=Confidence.DECLARED_DEFAULT)
    none = site(Medium.NONE, survives_process=False, chosen=off)
    refused = site(Medium.POSTGRES, chosen=Known(value=False))
    assert verdicts(service(), code(none, refused)) == [V, V]
    assert verdicts(service(), code(none, site(Medium.POSTGRES))) == [H, H]


def test_of_savers_that_all_seem_not_to_be_taken_none_is_taken_for_granted():
    never = Known(value=False, confidence=Confidence.DECLARED_DEFAULT)
    none = site(Medium.NONE, survives_process=False)
    memory, kept = (site(one, chosen=never) for one in (Medium.MEMORY, Medium.POSTGRES))
    assert verdicts(service(), code(none, memory, kept)) == [U, U]


def test_a_saver_in_memory_that_a_default_switches_off_is_none():
    never = Known(value=False, confidence=Confidence.DECLARED_DEFAULT)
    none = site(Medium.NONE, survives_process=False)
    found = verdicts(service(), code(none, site(Medium.MEMORY, chosen=never), uses_threads=()))
    assert V not in found


def test_langgraph_dev_loses_seconds_by_a_restart_and_all_by_a_replacement():
    own = service(start=start("langgraph dev --host 0.0.0.0"))
    assert verdicts(own, code(site())) == [U, V]
    kept = service(start=start("langgraph dev"), mounts=(mount("/app/.langgraph_api"),))
    assert verdicts(kept, code()) == [U, H]


def test_langgraphs_server_is_known_by_what_it_is_told():
    told = {
        **variable("REDIS_URI", "redis://redis:6379"),
        **variable("DATABASE_URI", "postgres://u@db:5432/x", line=6),
    }
    own = service(image=Image(reference="own/graphs:1"), start=None, environment=told)
    db = database(mounts=(mount("/var/lib/postgresql/data"),))
    found = judged(Contract.S2, own, code(site()), db)
    assert (found.verdict, found.confidence) == (H, Confidence.INFERRED)
    assert judged(Contract.R1, own, code()).verdict is V


def test_a_bare_graph_beside_langgraphs_server_is_a_question():
    bare = code(site(Medium.NONE))
    assert judged(Contract.S1, service(), bare).verdict is V
    server = service("graphs", start=start("langgraph dev"))
    assert judged(Contract.S1, service(), bare, server).verdict is U


def test_a_graph_that_forgets_beside_one_that_keeps_is_a_question():
    forgets = site(Medium.MEMORY, evidence=(at("a.py", 3),))
    keeps = file("/data/x.db", evidence=(at("b.py", 9),))
    may_keep = file("/data/x.db", evidence=(at("b.py", 9),), chosen=Known(value=None, question="?"))
    kept = service(mounts=(mount("/data"),))
    assert verdicts(kept, code(forgets)) == [V, V]
    assert verdicts(kept, code(forgets, keeps)) == [U, U]
    assert verdicts(kept, code(forgets, may_keep)) == [U, U]


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [(code(site()), V), (code(site(Medium.POSTGRES)), H), (code(file("/app/x.db")), U)],
)
def test_workers_are_several_where_nobody_says_how_many_containers_run(facts, verdict):
    unsaid = Known(value=None, evidence=(at("Dockerfile", 1),), question="How many containers?")
    found = judged(Contract.S3, replace(several(workers=2), replicas=unsaid), facts)
    assert found.verdict is verdict
