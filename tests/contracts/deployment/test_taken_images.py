"""Which images that are only named are taken for what a Dockerfile of the project makes."""

import pytest

from perdure.contracts._subjects import subjects
from perdure.contracts.check import check
from perdure.contracts.evidence import Confidence
from perdure.contracts.findings import Contract, Verdict
from tests.contracts.deployment.reading import SLIM, project, roots

SHELL = SLIM + "CMD uvicorn main:app\n"
APP = "from fastapi import FastAPI\napp = FastAPI()\n"


def compose(image, *more):
    return "\n".join(
        ["services:", "  web:", f"    image: {image}", "    restart: always", *more, ""]
    )


def taken(folder, files):
    """Return the Dockerfile of the service `web`."""
    read = roots(folder, files)["compose.yaml"]
    return next(s.image.dockerfile for s in read.services if s.name == "web"), read


@pytest.mark.parametrize(
    ("image", "files", "expected"),
    [
        ("booking:1", {}, "Dockerfile"),
        ("acme/booking:1", {"pyproject.toml": '[project]\nname = "booking"\n'}, "Dockerfile"),
        ("acme/booking-api:1", {"pyproject.toml": '[project]\nname = "booking"\n'}, "Dockerfile"),
        ("your-org/booking:1", {}, "Dockerfile"),
        ("acme/booking:1", {"build.sh": "docker build -t acme/booking .\n"}, "Dockerfile"),
        ("acme/booking:1", {"README.md": "# Booking AI Agent\n"}, "Dockerfile"),
        ("acme/room-booking-api:1", {"README.md": "# RoomBooking demo\n"}, "Dockerfile"),
        ("acme/booking:1", {"README.md": "# Booking helper\n"}, None),
        ("acme/booking:1", {"pyproject.toml": '[project]\nname = "booking-helper"\n'}, None),
        ("acme/booking-chat:1", {"README.md": "# Booking search chat demo\n"}, None),
        ("bookinghq/booking:1", {"README.md": "# Booking demo\n"}, None),
        ("bookinghq/booking:1", {"README.md": "# Booking\n"}, "Dockerfile"),
        ("acme/booking:1", {"README.md": "# How a desk for booking of rooms came to be\n"}, None),
        ("acme/other:1", {}, None),
        ("acme/booking-proxy:1", {"pyproject.toml": '[project]\nname = "booking"\n'}, None),
        ("acme/booking:1", {"build.sh": "docker build -t umbrella/booking .\n"}, None),
        ("gcr.io/PROJECT_ID/booking:1", {}, "Dockerfile"),
        ("gcr.io/acme-prod/booking:1", {}, None),
        (
            "acme/booking:1",
            {"build.sh": "docker build -t acme/booking --build-arg AT=$(date -u +%Y) .\n"},
            "Dockerfile",
        ),
    ],
)
def test_an_image_is_taken_for_ours_when_its_name_fits(tmp_path, image, files, expected):
    found, _ = taken(
        tmp_path, {"compose.yaml": compose(image), "Dockerfile": SHELL, "main.py": APP, **files}
    )
    assert found == expected


def test_the_name_of_a_clone_says_nothing(tmp_path):
    files = {"compose.yaml": compose("acme/booking:1"), "Dockerfile": SHELL, "main.py": APP}
    found = [taken(tmp_path / name, files)[0] for name in ("booking", "acme+booking", "work")]
    assert found == [None, None, None]


@pytest.mark.parametrize("named", ["    image: tools:prod", ""])
def test_what_the_same_file_builds_under_another_name_is_not_somebody_elses_image(tmp_path, named):
    built = ["  tools:", "    build: ./backend/tools", named]
    files = {
        "compose.yaml": compose("video-tools-server", *built),
        "backend/tools/Dockerfile": SHELL,
        "backend/tools/main.py": APP,
    }
    found, read = taken(tmp_path, files)
    assert found is None
    assert [each.name for each in subjects(read)] == ["tools"]


def test_a_verdict_on_a_taken_dockerfile_says_so(tmp_path):
    project(
        tmp_path,
        {
            "compose.yaml": compose("acme/booking:1"),
            "Dockerfile": SHELL,
            "main.py": APP,
            "README.md": "Build it:\n\n    docker build -t you/booking .\n",
            "pyproject.toml": '[project]\nname = "booking"\n',
        },
    )
    (root,) = check(tmp_path).roots
    found = {each.contract: each for each in root.findings}
    signal = found[Contract.R2]
    assert (signal.verdict, signal.confidence) == (Verdict.VIOLATED, Confidence.INFERRED)
    assert "taken for image acme/booking:1" in signal.evidence[-1].note
    assert (signal.evidence[-1].file, signal.evidence[-1].line) == ("README.md", 3)
    assert found[Contract.R4].confidence is Confidence.PROVED
    assert all("taken for" not in each.note for each in found[Contract.R4].evidence)
    assert found[Contract.S0].confidence is Confidence.INFERRED


def test_a_guessed_dockerfile_says_so_as_well(tmp_path):
    files = {"compose.yaml": compose("booking:1"), "Dockerfile": SHELL, "main.py": APP}
    project(tmp_path, files)
    (root,) = check(tmp_path).roots
    (signal,) = (each for each in root.findings if each.contract is Contract.R2)
    assert signal.evidence[-1].note.startswith("this Dockerfile is taken for image booking:1")


API = {"api/Dockerfile": SLIM + 'CMD ["uvicorn", "app:app"]\n'}


@pytest.mark.parametrize(
    ("image", "name", "is_taken"),
    [
        ("${IMAGE_URI}", "server", True),
        ("${IMAGE_URI}", "frontend", False),
        ("${IMAGE_URI:-other/proxy:1}", "server", False),
        ("me/shop-ui:1", "ui", False),
        ("shop-frontend:1", "web", False),
    ],
)
def test_an_image_of_a_pipeline_is_the_only_server_and_a_front_end_is_not(
    tmp_path, image, name, is_taken
):
    text = f"services:\n  {name}:\n    image: {image}\n"
    found = roots(tmp_path, {**API, "compose.yaml": text})["compose.yaml"].services[0]
    assert (found.image.dockerfile == "api/Dockerfile") is is_taken


def test_langgraph_build_makes_an_image_of_the_platform(tmp_path):
    text = (
        "services:\n  agent:\n    # langgraph build -t me/agent-prod:latest -c langgraph.json\n"
        "    image: me/agent-prod:latest\n"
    )
    found = roots(tmp_path, {**API, "compose.yaml": text})["compose.yaml"].services[0]
    assert found.image.catalog == "langgraph-api"
    assert found.image.evidence[-1].line == 3


def test_pages_that_a_web_server_hands_out_are_no_server_of_agents(tmp_path):
    files = {
        "Dockerfile.site": "FROM nginx:alpine\nCOPY . /usr/share/nginx/html\n",
        "cases/nine/backend/Dockerfile": API["api/Dockerfile"],
        "compose.yaml": "services:\n  agent:\n    image: shop-case9:v1\n",
    }
    found = roots(tmp_path, files)["compose.yaml"].services[0]
    assert found.image.dockerfile == "cases/nine/backend/Dockerfile"


def test_of_several_dockerfiles_the_one_that_shares_most_of_the_name_is_taken(tmp_path):
    project(
        tmp_path,
        {
            "deploy/compose.yaml": compose("ghcr.io/acme/booking-api:1"),
            "booking_api/Dockerfile": SHELL,
            "booking_api/main.py": APP,
            "booking_mcp/Dockerfile": SHELL,
            "booking_jobs/Dockerfile": SHELL,
            "pyproject.toml": '[project]\nname = "booking"\n',
        },
    )
    (root,) = (one for one in check(tmp_path).roots if one.root == "deploy/compose.yaml")
    (signal,) = (each for each in root.findings if each.contract is Contract.R2)
    assert signal.evidence[-1].file == "booking_api/Dockerfile"
