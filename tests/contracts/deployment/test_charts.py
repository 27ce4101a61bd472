"""Charts without `helm`: values, conditions, loops and named templates, with their lines."""

import pytest

from perdure.contracts.deployment._template_functions import Open, called
from perdure.contracts.deployment._templates import parsed
from perdure.contracts.deployment.facts import Lifetime
from tests.contracts.deployment.reading import SLIM, roots

DOCKERFILE = SLIM + 'CMD ["uvicorn", "app:app"]\n'

HELPERS = """\
{{- define "shop.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name }}
{{- end }}
{{- end }}
{{- end }}
{{- define "shop.labels" -}}
app: {{ .Chart.Name }}
release: {{ .Release.Name | quote }}
{{- end }}
{{- define "shop.env" -}}
- name: LEVEL
  value: {{ .Values.level | quote }}
- name: HOST
  value: "{{ include "shop.fullname" . }}-db"
{{- end }}
"""

VALUES = """\
replicaCount: 2
level: 7
image: {repository: api, tag: ""}
extraEnv:
  - {name: MORE, value: "x"}
config:
  SAVER: sqlite
  DEPTH: 3
sidecars:
  - {name: proxy, image: "envoy:1", on: true}
  - {name: off, image: "envoy:1", on: false}
resources:
  limits:
    memory: 512Mi
persistence: {enabled: true, path: /data}
mode: queue
"""

TEMPLATE = """\
{{- $root := . }}
{{- if and .Values.persistence.enabled (or (eq .Values.mode "queue") (eq .Values.mode "x")) }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "shop.fullname" . }}-api
  labels:
    {{- include "shop.labels" . | nindent 4 }}
spec:
  replicas: {{ .Values.replicaCount }}
  template:
    spec:
      containers:
        - name: {{ .Chart.Name }}
          image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default "2" }}"
          env:
            {{- include "shop.env" . | nindent 12 }}
            {{- toYaml .Values.extraEnv | nindent 12 }}
            {{- range $key, $value := .Values.config }}
            - name: {{ $key }}
              value: {{ $value | quote }}
            {{- end }}
          {{- with .Values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - name: data
              mountPath: {{ .Values.persistence.path }}
        {{- range .Values.sidecars }}
        {{- if .on }}
        - name: {{ .name }}
          image: {{ .image }}
          env: [{name: ROOT, value: "{{ $root.Chart.Name }}"}]
        {{- end }}
        {{- end }}
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: data}
{{- end }}
"""


def chart(folder, template=TEMPLATE, values=VALUES, helpers=HELPERS):
    files = {
        "Dockerfile": DOCKERFILE,
        "chart/Chart.yaml": 'name: shop\nappVersion: "1.2"\n',
        "chart/values.yaml": values,
        "chart/templates/_helpers.tpl": helpers,
        "chart/templates/api.yaml": template,
    }
    root = roots(folder, files).get("chart/Chart.yaml")
    return {service.name: service for service in root.services} if root is not None else {}


def test_loops_named_templates_and_blocks_are_what_values_make_of_them(tmp_path):
    found = chart(tmp_path)
    assert set(found) == {"shop-api/shop", "shop-api/proxy"}
    api = found["shop-api/shop"]
    values = {name: one.known.value for name, one in api.environment.items()}
    assert values == {"LEVEL": "7", "HOST": "shop-db", "MORE": "x", "SAVER": "sqlite", "DEPTH": "3"}
    assert api.image.dockerfile == "Dockerfile"
    assert api.replicas.value == 2
    assert api.memory_bytes.value == 512 * 1024**2
    assert [(m.path, m.lifetime) for m in api.mounts] == [("/data", Lifetime.NAMED)]
    assert found["shop-api/proxy"].environment["ROOT"].known.value == "shop"


def test_each_fact_has_the_line_of_the_template(tmp_path):
    api = chart(tmp_path)["shop-api/shop"]
    lines = TEMPLATE.splitlines()

    def line(text):
        return 1 + next(number for number, each in enumerate(lines) if text in each)

    assert api.place.line == line("- name: {{ .Chart.Name }}")
    assert api.replicas.evidence[0].line == line("replicas:")
    assert api.environment["SAVER"].known.evidence[0].line == line("value: {{ $value | quote }}")
    assert api.environment["LEVEL"].known.evidence[0].line == line('include "shop.env"')
    assert api.mounts[0].evidence[0].line == line("- name: data")
    assert all(e.file == "chart/templates/api.yaml" for e in api.replicas.evidence)


@pytest.mark.parametrize(
    ("condition", "is_there"),
    [
        ("eq .Values.mode .Values.mode", True),
        ('and (ne .Values.mode "queue") .Values.level', False),
        ("gt (int .Values.replicaCount) 1", True),
        ("lt (int .Values.replicaCount) 2", False),
        ('has "a" (list "a" "b")', True),
        ('eq (default "none" .Values.missing) "none"', True),
        ("not (hasKey .Values.persistence `enabled`)", False),
        ('eq .Values.mode "a" "queue"', True),
        ('.Capabilities.APIVersions.Has "x"', True),  # not known: it is shown
    ],
)
def test_conditions(tmp_path, condition, is_there):
    old = TEMPLATE.splitlines()[1]
    found = chart(tmp_path, TEMPLATE.replace(old, f"{{{{- if {condition} }}}}"))
    assert bool(found) is is_there


def test_what_values_do_not_say_is_a_question(tmp_path):
    values = VALUES.replace("replicaCount: 2\n", "").replace("level: 7\n", "")
    api = chart(tmp_path, values=values)["shop-api/shop"]
    assert api.replicas.value is None
    assert api.environment["LEVEL"].known.question == "What is the value of LEVEL?"


def test_an_include_that_includes_itself_ends(tmp_path):
    helpers = '{{- define "shop.fullname" -}}{{ include "shop.fullname" . }}{{- end }}\n' + HELPERS
    assert chart(tmp_path, helpers='{{- define "shop.env" -}}{{ include "shop.env" . }}{{ end }}')
    assert chart(tmp_path, helpers=helpers)


def test_images_of_a_kustomization_have_new_names(tmp_path):
    deployment = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\nspec:\n  template:\n"
        "    spec:\n      containers:\n        - {name: api, image: placeholder}\n"
    )
    files = {
        "services/api/Dockerfile": DOCKERFILE,
        "Makefile": "image:\n\tdocker build -t ghcr.io/me/shop-api services/api\n",
        "k8s/api.yaml": deployment,
        "k8s/kustomization.yaml": "resources: [api.yaml]\nimages:\n"
        "  - {name: placeholder, newName: ghcr.io/me/shop-api, newTag: v2}\n",
    }
    (api,) = roots(tmp_path, files)["k8s/kustomization.yaml"].services
    assert api.image.dockerfile == "services/api/Dockerfile"


BIG = 999_999_999_999_999


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("mul", BIG, BIG), 5_074_944_270_305_263_617),
        (("add", 2**63 - 1, 1), -(2**63)),
        (("sub", -(2**63), 1), 2**63 - 1),
        (("mul", BIG, -2), -2 * BIG),
        (("mul", 1.5, 2), 3.0),
        (("int", "9" * 30), Open("int")),
        (("int", "9" * 5000), Open("int")),
        (("atoi", "9" * 30), Open("atoi")),
        (("atoi", "12"), 12),
    ],
)
def test_whole_numbers_have_64_bits(words, made):
    assert called(words[0], list(words[1:]), lambda _: None) == made


@pytest.mark.parametrize(
    "words",
    [
        *((name, "a" * 100_000) for name in ("lower", "upper", "title", "trim", "kebabcase")),
        ("trunc", 90_000, "a" * 100_000),
        ("replace", "a", "b", "a" * 100_000),
        ("splitList", "a", "a" * 100_000),
        ("eq", "a" * 100_000, "b"),
        ("has", "a" * 1000, ["b"] * 1000),
        ("toYaml", ["a" * 10_000] * 10),
        ("toYaml", "a" * 100_000),
        ("print", *["a" * 4000] * 60),
    ],
    ids=lambda words: words[0],
)
def test_what_a_function_reads_and_makes_is_charged_by_its_length(words):
    spent = []
    called(words[0], list(words[1:]), spent.append)
    assert sum(spent) >= 4_000


def test_signs_that_are_trimmed_are_few():
    asked = ["b" * 1000, "a" * 1000]
    assert called("trimAll", asked, lambda _: None) == Open("trimAll")
    assert called("trimAll", ["/", "/a/"], lambda _: None) == "a"


class Counting(str):
    """A text that knows how much of it was searched for quotes."""

    __slots__ = ()
    counted = 0

    def count(self, sign, start=0, end=None):
        if sign == '"':
            Counting.counted += end - start
        return str.count(self, sign, start, end)


def test_a_quote_that_stays_open_is_looked_for_once():
    Counting.counted = 0
    parsed(Counting('{{ "' + "}}" * 1900))
    assert Counting.counted < 5_000


SUB = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: {{ .Values.replicaCount }}
  template:
    spec:
      terminationGracePeriodSeconds: {{ .Values.global.grace }}
      containers:
        - name: api
          image: api:1
          env: [{name: LEVEL, value: "{{ .Values.config.level }}-{{ .Values.config.depth }}"}]
"""


@pytest.mark.parametrize("alias", ["api", "other"])
def test_a_chart_within_a_chart_has_the_values_that_the_outer_one_gives_it(tmp_path, alias):
    about = f"name: outer\ndependencies:\n  - {{name: api, alias: {alias}}}\n"
    files = {
        "Dockerfile": DOCKERFILE,
        "outer/Chart.yaml": about,
        "outer/values.yaml": (
            f"global: {{grace: 90}}\n{alias}: {{replicaCount: 5, config: {{level: 3}}}}\n"
        ),
        "outer/charts/api/Chart.yaml": "name: api\n",
        "outer/charts/api/values.yaml": (
            "replicaCount: 1\nconfig: {level: 1, depth: 2}\nglobal: {grace: 1, more: 2}\n"
        ),
        "outer/charts/api/templates/api.yaml": SUB,
    }
    [found] = roots(tmp_path, files)["outer/charts/api/Chart.yaml"].services
    assert (found.replicas.value, found.grace_s.value) == (5, 90.0)
    assert found.environment["LEVEL"].known.value == "3-2"


TWICE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 20
      containers:
        - {name: api, image: "api:1"}
      terminationGracePeriodSeconds: {{ .Values.grace }}
"""


def test_of_two_keys_the_last_one_counts_as_it_does_for_helm(tmp_path):
    files = {
        "Dockerfile": DOCKERFILE,
        "chart/Chart.yaml": "name: shop\n",
        "chart/values.yaml": "grace: 40\ngrace: 50\n",
        "chart/templates/deployment.yaml": TWICE,
    }
    [api] = roots(tmp_path, files)["chart/Chart.yaml"].services
    assert (api.grace_s.value, api.grace_s.evidence[0].line) == (50.0, 10)


def test_of_two_keys_of_a_manifest_none_counts(tmp_path):
    plain = TWICE.replace("{{ .Values.grace }}", "50")
    assert "k8s/api.yaml" not in roots(tmp_path, {"Dockerfile": DOCKERFILE, "k8s/api.yaml": plain})
