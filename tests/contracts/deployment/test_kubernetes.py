"""Manifests, kustomizations and charts."""

import pytest

from perdure.contracts.deployment import read_roots
from perdure.contracts.deployment.facts import Lifetime, Signal
from tests.contracts.deployment.reading import SLIM, project, roots, service, services

DOCKERFILE = SLIM + 'CMD ["uvicorn", "app:app"]\n'

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: api
spec:
  replicas: {replicas}
{strategy}
  template:
    spec:
{pod}
      containers:
        - name: api
          image: api:1
{container}
"""


def indented(text, spaces):
    return "\n".join(" " * spaces + line for line in text.splitlines())


def manifest(*, replicas=1, strategy="", pod="", container=""):
    return DEPLOYMENT.format(
        replicas=replicas,
        strategy=indented(strategy, 2),
        pod=indented(pod, 6),
        container=indented(container, 10),
    )


def deployed(folder, text=None, **parts):
    files = {"Dockerfile": DOCKERFILE, "k8s/api.yaml": text or manifest(**parts)}
    return service(folder, files)


def test_the_image_is_joined_with_the_dockerfile_that_makes_it(tmp_path):
    found = deployed(tmp_path)
    assert found.image.dockerfile == "Dockerfile"
    assert found.start.server.target == "app:app"
    assert found.controller == "Deployment"
    assert found.restart.value == "controller"


def test_command_and_args_are_entry_point_and_cmd(tmp_path):
    shell = 'command: ["sh", "-c"]\nargs: ["uvicorn app:api"]\n'
    assert deployed(tmp_path, container=shell).start.signal.value is Signal.LOST
    arguments = 'args: ["uvicorn", "app:$(NAME)"]\nenv: [{name: NAME, value: x}]\n'
    assert deployed(tmp_path, container=arguments).start.argv == ("uvicorn", "app:x")


SHARES = [
    (1, "", 0, 1),
    (4, "", 1, 1),
    (3, "maxUnavailable: 50%\n    maxSurge: 0", 1, 0),
    (2, "maxUnavailable: 1\n    maxSurge: 50%", 1, 1),
]


@pytest.mark.parametrize(("replicas", "rolling", "unavailable", "surge"), SHARES)
def test_shares_are_rounded_as_kubernetes_does(tmp_path, replicas, rolling, unavailable, surge):
    strategy = f"strategy:\n  rollingUpdate:\n    {rolling}\n" if rolling else ""
    update = deployed(tmp_path, replicas=replicas, strategy=strategy).update
    assert (update.max_unavailable.value, update.max_surge.value) == (unavailable, surge)
    assert update.max_unavailable.is_default is not bool(rolling)


def test_recreate(tmp_path):
    update = deployed(tmp_path, strategy="strategy: {type: Recreate}").update
    assert update.mechanism == "kubernetes_recreate"
    assert update.evidence[0].line == 7


def test_times_and_probes(tmp_path):
    found = deployed(
        tmp_path,
        pod="terminationGracePeriodSeconds: 45",
        container="readinessProbe: {httpGet: {path: /}}\nlifecycle: {preStop: {exec: {command: "
        '["sh", "-c", "sleep 15"]}}}\nresources: {limits: {memory: 1Gi}}\n',
    )
    assert (found.grace_s.value, found.pre_stop_s.value) == (45.0, 15.0)
    assert found.pre_stop == ("CMD", "sh", "-c", "sleep 15")
    assert found.has_readiness
    assert found.memory_bytes.value == 1024**3
    hooks = {"{sleep: {seconds: 5}}": ("SLEEP", "5"), "{httpGet: {port: 80}}": ("HTTP", "80", "/")}
    for hook, said in hooks.items():
        assert deployed(tmp_path, container=f"lifecycle: {{preStop: {hook}}}").pre_stop == said
    plain = deployed(tmp_path)
    assert (plain.grace_s.value, plain.grace_s.is_default, plain.has_readiness) == (
        30.0,
        True,
        False,
    )


def test_an_autoscaler_gives_the_most_and_the_least(tmp_path):
    scaler = (
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: x}\n"
        "spec:\n  scaleTargetRef: {kind: Deployment, name: api}\n"
        "  minReplicas: 2\n  maxReplicas: 9\n"
    )
    found = deployed(tmp_path, manifest(replicas=3) + "---\n" + scaler)
    assert found.replicas.value == 9
    assert found.update.replicas.value == 2


def test_environment_from_maps_and_secrets(tmp_path):
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {URL: a, OTHER: b}\n"
    container = (
        "envFrom: [{configMapRef: {name: conf}}]\nenv:\n"
        "  - {name: OWN, value: c}\n"
        "  - {name: KEY, valueFrom: {configMapKeyRef: {name: conf, key: OTHER}}}\n"
        "  - {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}\n"
    )
    found = deployed(tmp_path, manifest(container=container) + "---\n" + config).environment
    values = {name: each.known.value for name, each in found.items()}
    assert values == {"URL": "a", "OTHER": "b", "OWN": "c", "KEY": "b", "SECRET": None}
    assert found["SECRET"].known.question == "What is the value of SECRET?"


def test_volumes_and_how_long_they_live(tmp_path):
    claim = (
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: claim}\n"
        "spec: {accessModes: [ReadWriteOnce]}\n"
    )
    pod = (
        "volumes:\n  - {name: a, emptyDir: {}}\n  - {name: b, emptyDir: {medium: Memory}}\n"
        "  - {name: c, persistentVolumeClaim: {claimName: claim}}\n"
        "  - {name: d, hostPath: {path: /x}}\n"
    )
    container = "volumeMounts:\n" + "".join(
        f"  - {{name: {name}, mountPath: /{name}}}\n" for name in "abcd"
    )
    text = manifest(pod=pod, container=container) + "---\n" + claim
    mounts = {each.path: each for each in deployed(tmp_path, text).mounts}
    assert [mounts[f"/{name}"].lifetime for name in "abcd"] == [
        Lifetime.LAYER,
        Lifetime.TMPFS,
        Lifetime.NAMED,
        Lifetime.NAMED,
    ]
    assert (mounts["/c"].access_mode, mounts["/c"].is_shared) == ("ReadWriteOnce", False)


def test_init_containers_that_wait(tmp_path):
    pod = (
        "initContainers:\n  - name: wait\n    image: busybox\n"
        "    command: [sh, -c, 'until nc -z db.ns 5432; do sleep 1; done']\n"
    )
    (found,) = deployed(tmp_path, pod=pod).depends_on
    assert (found.service, found.condition) == ("db", "init_container")


def test_workloads_of_other_kinds(tmp_path):
    pod = "spec: {restartPolicy: Never, containers: [{name: a, image: x/y}]}\n"
    job = "spec: {template: {spec: {containers: [{name: a, image: x/y}]}}}\n"
    text = (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: pod}}\n{pod}---\n"
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: job}}\n{job}"
    )
    found = services(tmp_path, {"k8s/all.yaml": text})
    assert (found["pod"].restart.value, found["pod"].update) == ("no", None)
    assert found["job"].is_one_shot


def test_a_kustomization_is_patched_and_keeps_its_lines(tmp_path):
    files = {
        "Dockerfile": DOCKERFILE,
        "base/kustomization.yaml": "resources: [api.yaml]\n",
        "base/api.yaml": manifest(),
        "prod/kustomization.yaml": (
            "resources: [../base]\nreplicas: [{name: api, count: 5}]\npatches:\n"
            "  - path: grace.yaml\n  - target: {kind: Deployment, name: a.*}\n    patch: |-\n"
            "      - op: add\n        path: /spec/strategy\n        value: {type: Recreate}\n"
            "configMapGenerator: [{name: conf, literals: [A=b]}]\n"
        ),
        "prod/grace.yaml": (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\nspec:\n  template:\n"
            "    spec:\n      terminationGracePeriodSeconds: 90\n      containers:\n"
            "        - name: api\n          envFrom: [{configMapRef: {name: conf}}]\n"
        ),
    }
    found = roots(tmp_path, files)
    base = found["base/kustomization.yaml"].services[0]
    prod = found["prod/kustomization.yaml"].services[0]
    assert (base.replicas.value, base.grace_s.is_default) == (1, True)
    assert (prod.replicas.value, prod.grace_s.value) == (5, 90.0)
    assert (prod.grace_s.evidence[0].file, prod.grace_s.evidence[0].line) == ("prod/grace.yaml", 7)
    assert prod.update.mechanism == "kubernetes_recreate"
    assert prod.environment["A"].known.value == "b"
    assert prod.image.dockerfile == "Dockerfile"
    assert (prod.place.file, prod.place.line) == ("base/api.yaml", base.place.line)


TEMPLATE = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "chart.fullname" . }}-api
  labels:
    {{- include "chart.labels" . | nindent 4 }}
spec:
  replicas: {{ .Values.replicas }}
  template:
    spec:
      {{- /* a comment
             of two lines */}}
      terminationGracePeriodSeconds: {{ .Values.grace | default 45 }}
      containers:
        - name: api
          image: "{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
          {{- if .Values.probe.enabled }}
          readinessProbe:
            {{- toYaml .Values.probe.http | nindent 12 }}
          {{- end }}
          env:
            - name: LEVEL
              value: {{ .Values.level | quote }}
            - name: OPEN
              value: {{ .Values.nothing }}
          {{- range .Values.extra }}
            - name: {{ .name }}
          {{- end }}
          {{- with .Values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
"""
VALUES = """\
replicas: 3
image: {name: registry.example/agent}
probe: {enabled: true, http: {httpGet: {path: /ok}}}
level: 5
extra: [{name: x}]
resources: {limits: {memory: 1Gi}}
"""


def test_a_chart_is_read_with_its_values(tmp_path):
    files = {
        "Dockerfile": DOCKERFILE,
        "chart/Chart.yaml": "name: chart\n",
        "chart/values.yaml": VALUES,
        "chart/templates/api.yaml": TEMPLATE,
    }
    found = roots(tmp_path, files)
    (api,) = found["chart/Chart.yaml"].services
    assert api.name == "chart-api"
    assert (api.replicas.value, api.replicas.evidence[0].line) == (3, 8)
    assert (api.grace_s.value, api.grace_s.evidence[0].line) == (45.0, 13)
    assert api.has_readiness
    assert api.memory_bytes.value == 1024**3
    assert api.environment["LEVEL"].known.value == "5"
    assert api.environment["OPEN"].known.question == "What is the value of OPEN?"


def test_what_a_chart_switches_off_is_not_there(tmp_path):
    values = VALUES.replace("enabled: true", "enabled: false").replace("replicas: 3", "")
    files = {
        "Chart.yaml": "name: chart\n",
        "values.yaml": values,
        "templates/api.yaml": TEMPLATE,
    }
    (root,) = roots(tmp_path, files).values()
    (api,) = root.services
    assert not api.has_readiness
    assert api.replicas.value is None
    assert api.replicas.question == "How many replicas are there?"


CONDITIONS = [
    ("and .Values.on .Values.on", True),
    ("and (not .Values.on) .Values.other.thing", False),
    ("and (not .Values.off) (or .Values.off .Values.on)", True),
    ("or .Values.off (and .Values.on .Values.off)", False),
    ("not (or .Values.off .Values.off)", True),
    ("(and .Values.on (not (not .Values.on)))", True),
    ('and .Values.on (eq .Values.kind "a")', True),
    ('and .Values.on (semverCompare ">1" .Capabilities)', True),  # not known: it is shown
    ("(" * 3_000 + "and .Values.off .Values.off" + ")" * 3_000, True),
]


@pytest.mark.parametrize(("condition", "is_there"), CONDITIONS)
def test_conditions_of_charts_are_joined(tmp_path, condition, is_there):
    manifest = f"{{{{- if {condition} }}}}\n{PLAIN}{{{{- end }}}}\n"
    files = {
        "Dockerfile": DOCKERFILE,
        "Chart.yaml": "name: chart\n",
        "values.yaml": "on: true\noff: false\nkind: a\n",
        "templates/api.yaml": manifest,
    }
    found = roots(tmp_path, files)
    names = [
        own.name for root in found.values() for own in root.services if root.root != "Dockerfile"
    ]
    assert (names == ["worker"]) is is_there


PLAIN = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: worker
spec:
  template:
    spec:
      containers:
        - name: worker
          image: worker
"""


def test_services_are_names_of_the_pods_that_they_lead_to(tmp_path):
    text = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: store}\nspec: {selector: {app: db}}\n---\n"
        "apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {selector: {app: x}}\n---\n"
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: postgres}\nspec:\n  template:\n"
        "    metadata: {labels: {app: db, tier: data}}\n"
        "    spec: {containers: [{name: db, image: 'postgres:16'}]}\n"
    )
    (root,) = roots(tmp_path, {"k8s.yaml": text}).values()
    assert root.services[0].aliases == ("store",)


BASE = {
    "Dockerfile": DOCKERFILE,
    "k8s/base/kustomization.yaml": (
        "resources: [api.yaml]\n"
        "configMapGenerator:\n  - {name: settings, literals: [LEVEL=1, MODE=slow]}\n"
    ),
    "k8s/base/api.yaml": manifest(
        replicas=2,
        container=(
            "envFrom: [{configMapRef: {name: settings}}]\n"
            "env: [{name: A, value: a}, {name: B, value: b}]\n"
        ),
    ).replace("  name: api\nspec", "  name: api\n  labels: {tier: web}\nspec"),
}


def overlaid(folder, overlay):
    """Return the service of an overlay over the base."""
    files = {**BASE, "k8s/prod/kustomization.yaml": "resources: [../base]\n" + overlay}
    return roots(folder, files)["k8s/prod/kustomization.yaml"].services[0]


def test_what_an_overlay_generates_goes_over_what_its_base_does(tmp_path):
    generated = (
        "configMapGenerator:\n  - {name: settings, behavior: merge, literals: [MODE=fast]}\n"
    )
    found = overlaid(tmp_path, generated).environment
    assert [found[name].known.value for name in ("LEVEL", "MODE")] == ["1", "fast"]
    replaced = generated.replace("merge", "replace")
    assert "LEVEL" not in overlaid(tmp_path / "other", replaced).environment


def test_a_patch_takes_an_entry_out_of_a_list(tmp_path):
    patch = (
        "patches:\n  - patch: |-\n      apiVersion: apps/v1\n      kind: Deployment\n"
        "      metadata: {name: api}\n      spec: {template: {spec: {containers: [{name: api,"
        " env: [{name: A, $patch: delete}]}]}}}\n"
    )
    found = overlaid(tmp_path, patch).environment
    assert "A" not in found
    assert found["B"].known.value == "b"


OPERATIONS = """\
patches:
  - target: {{kind: Deployment, labelSelector: "{labels}"}}
    patch: |-
      - {{op: replace, path: /spec/replicas, value: 7}}
      - {{op: add, path: /spec/template/spec/containers/0/env/0, value: {{name: C, value: c}}}}
"""


@pytest.mark.parametrize(("labels", "replicas"), [("tier=web", 7), ("tier=batch", 2), ("a", 2)])
def test_operations_are_made_where_a_target_fits(tmp_path, labels, replicas):
    found = overlaid(tmp_path, OPERATIONS.format(labels=labels))
    assert found.replicas.value == replicas
    named = [name for name in found.environment if name in "ABC"]
    assert named == (["C", "A", "B"] if replicas == 7 else ["A", "B"])


@pytest.mark.parametrize(
    ("overlay", "reason"),
    [
        ("replacements: [{source: {kind: ConfigMap}}]\n", "its replacements are not made"),
        ("components: ['https://example.org/a?ref=1']\n", "https://example.org/a?ref=1 is not"),
    ],
)
def test_what_of_a_kustomization_is_not_read_is_named(tmp_path, overlay, reason):
    files = {**BASE, "k8s/prod/kustomization.yaml": "resources: [../base]\n" + overlay}
    given = project(tmp_path, files)
    assert read_roots(given, assume={})
    assert [reason in each.reason for each in given.unread] == [True]


@pytest.mark.parametrize(
    ("hook", "seconds"),
    [
        ("exec: {command: [sleep, '15']}", 15.0),
        ("exec: {command: [sh, -c, sleep 1m]}", 60.0),
        ("exec: {command: [sh, -c, 'nginx -s quit; sleep 3s']}", 3.0),
        ("httpGet: {path: /drain, port: 80}", None),
    ],
)
def test_how_long_a_hook_takes(tmp_path, hook, seconds):
    found = deployed(tmp_path, container=f"lifecycle: {{preStop: {{{hook}}}}}\n")
    assert found.pre_stop_s.value == seconds
