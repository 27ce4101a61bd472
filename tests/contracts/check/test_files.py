"""Which files of a folder are the project's."""

import pytest

from perdure.contracts.files import Project


def made(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    project = Project(folder)
    return sorted(project.paths), [each.file for each in project.unread]


@pytest.mark.parametrize(
    "others",
    [
        "venv/lib/a.py",
        "node_modules/a/Dockerfile",
        "lib/site-packages/a.py",
    ],
)
def test_what_others_wrote_is_left_out_by_its_name(tmp_path, others):
    assert made(tmp_path, "app.py", others) == (["app.py"], [])


def test_an_environment_of_any_name_is_left_out_and_named(tmp_path):
    files = ["app.py", "myenv/pyvenv.cfg", "myenv/lib/a.py", "myenv/share/compose.yaml"]
    assert made(tmp_path, *files) == (["app.py"], ["myenv"])


def test_a_folder_that_packages_were_installed_to_is_left_out_and_named(tmp_path):
    files = ["src/app.py", "package/redis/client.py", "package/redis-5.0.dist-info/METADATA"]
    assert made(tmp_path, *files) == (["src/app.py"], ["package"])


def test_a_project_that_lies_in_one_is_read(tmp_path):
    files = ["app.py", "a-1.0.dist-info/METADATA", "pyvenv.cfg"]
    found, unread = made(tmp_path, *files)
    assert "app.py" in found
    assert unread == []
