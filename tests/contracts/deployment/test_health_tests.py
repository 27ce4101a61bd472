"""What a platform runs to know that a container is healthy, as the files say it."""

import pytest

from perdure.contracts.deployment import read_roots
from perdure.contracts.files import Project

POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: api}}
spec:
  template:
    spec:
      containers:
        - name: api
          image: api:1
          ports: [{{name: web, containerPort: 8000}}]
          readinessProbe: {probe}
"""


def health_test(folder, name, text):
    (folder / name).write_text(text)
    (root,) = read_roots(Project(folder), assume={})
    return root.services[0].health_test


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ('{test: ["CMD", "pg_isready", "-U", "$${USER}"]}', ("CMD", "pg_isready", "-U", "${USER}")),
        ('{test: ["CMD-SHELL", "a || b"]}', ("CMD-SHELL", "a || b")),
        ('{test: "curl ${HOST:-here} && true"}', ("CMD-SHELL", "curl here && true")),
        ('{test: ["NONE"]}', ()),
        ('{test: ["CMD", "true"], disable: true}', ()),
        ("{interval: 1s}", ()),
        ("3", ()),
    ],
)
def test_of_a_compose_service(tmp_path, check, expected):
    text = f"services:\n  api:\n    image: api:1\n    healthcheck: {check}\n"
    assert health_test(tmp_path, "compose.yaml", text) == expected


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ("{httpGet: {path: /ready, port: 8000}}", ("HTTP", "8000", "/ready")),
        ("{httpGet: {port: web}}", ("HTTP", "8000", "/")),
        ("{tcpSocket: {port: web}}", ("TCP", "8000")),
        ("{exec: {command: [cat, /ready]}}", ("CMD", "cat", "/ready")),
        ("{grpc: {port: 1}}", ()),
        ("3", ()),
    ],
)
def test_of_a_pod(tmp_path, probe, expected):
    assert health_test(tmp_path, "deployment.yaml", POD.format(probe=probe)) == expected
