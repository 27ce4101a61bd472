"""Process 1: the rows of the table, and everything that may stand before a server."""

import pytest

from perdure.contracts.deployment.facts import Signal
from perdure.contracts.evidence import Confidence
from tests.contracts.deployment.reading import SLIM, image, service

REACHES, LOST, UNKNOWN = Signal.REACHES, Signal.LOST, Signal.UNKNOWN
APP = "uvicorn app:app"
WORDS = '"uvicorn", "app:app"'


def seen(found):
    return found.start.signal.value, found.start.shape


ROWS = {
    "exec form": (f"CMD [{WORDS}]", REACHES, "exec_server"),
    "exec form of a module": ('CMD ["python", "-m", "uvicorn", "app:app"]', REACHES, "exec_server"),
    "shell form on Debian": (f"CMD {APP}", LOST, "shell_dash"),
    "sh -c on Debian": (f'CMD ["sh", "-c", "{APP}"]', LOST, "shell_dash"),
    "sh -c, exec": (f'CMD ["sh", "-c", "cd x && exec {APP}"]', REACHES, "script_exec"),
    "shell form, exec": (f"CMD exec {APP}", REACHES, "script_exec"),
    "bash -c, last": (f'CMD ["bash", "-c", "cd x && A=1 {APP}"]', REACHES, "shell_bash_last"),
    "bash -c, not last": (f'CMD ["bash", "-c", "{APP}; echo"]', LOST, "shell_bash"),
    "bash -c, or": (f'CMD ["bash", "-c", "{APP} || echo"]', LOST, "shell_bash"),
    "bash -c, in an if": (f'CMD ["bash", "-c", "if a; then {APP}; fi"]', LOST, "shell_bash"),
    "bash -c, after an if": (
        f'CMD ["bash", "-c", "if a; then b; fi; {APP}"]',
        REACHES,
        "shell_bash_last",
    ),
    "bash -c, in braces": (f'CMD ["bash", "-c", "{{ {APP}; }}"]', LOST, "shell_bash"),
    "bash -c, pipe": (f'CMD ["bash", "-c", "{APP} | tee log"]', LOST, "shell_bash"),
    "bash -c, background": (f'CMD ["bash", "-c", "{APP} & wait"]', LOST, "script_background"),
    "bash as SHELL": (f'SHELL ["/bin/bash", "-c"]\nCMD {APP}', REACHES, "shell_bash_last"),
    "dash, background": (f'CMD ["sh", "-c", "{APP} & wait"]', LOST, "script_background"),
    "tini before a server": (f'ENTRYPOINT ["tini", "--", {WORDS}]', REACHES, "forwarded_server"),
    "tini before a shell": (
        f'ENTRYPOINT ["tini", "-g", "--", "sh", "-c", "{APP}"]',
        LOST,
        "shell_dash",
    ),
    "dumb-init": (f'ENTRYPOINT ["dumb-init"]\nCMD [{WORDS}]', REACHES, "forwarded_server"),
    "uv run": ('CMD ["uv", "run", "--no-dev", "uvicorn", "app:app"]', REACHES, "forwarded_server"),
    "uvx": (
        'CMD ["uvx", "--refresh", "--with-editable", ".", "uvicorn", "app:app"]',
        REACHES,
        "forwarded_server",
    ),
    "uv run in a shell": ("CMD cd x && uv run uvicorn app:app", LOST, "shell_dash"),
    "timeout": (f'CMD ["timeout", "600", {WORDS}]', REACHES, "forwarded_server"),
    "poetry run": (f'CMD ["poetry", "run", {WORDS}]', REACHES, "exec_server"),
    "gosu": (f'CMD ["gosu", "app", {WORDS}]', REACHES, "exec_server"),
    "env": (f'CMD ["env", "A=b", {WORDS}]', REACHES, "exec_server"),
    "npm": ('CMD ["npm", "start"]', UNKNOWN, "other_program"),
    "supervisord": ('CMD ["supervisord", "-n"]', UNKNOWN, "supervisord"),
    "http.server": ('CMD ["python", "-m", "http.server"]', LOST, "python_no_handler"),
    "a script of the image": ('CMD ["sh", "/opt/run.sh"]', UNKNOWN, "unknown_script"),
    "shell ENTRYPOINT drops CMD": (f'ENTRYPOINT {APP}\nCMD ["x"]', LOST, "shell_dash"),
    "exec ENTRYPOINT, shell CMD": (
        'ENTRYPOINT ["uvicorn"]\nCMD app:app --port 80',
        REACHES,
        "exec_server",
    ),
}


@pytest.mark.parametrize(("lines", "signal", "shape"), ROWS.values(), ids=ROWS.keys())
def test_rows(tmp_path, lines, signal, shape):
    found = image(tmp_path, lines + "\n")
    assert seen(found) == (signal, shape)


BASES = {
    "python:3.12": LOST,
    "python:3.12-alpine": UNKNOWN,
    "fedora:41": REACHES,
    "ghcr.io/astral-sh/uv:python3.12-bookworm-slim": LOST,
    "example.org/base:1": UNKNOWN,
}


@pytest.mark.parametrize(("base", "signal"), BASES.items())
def test_what_the_shell_is_depends_on_the_base(tmp_path, base, signal):
    files = {"Dockerfile": f"FROM {base}\nCMD uvicorn app:app\n"}
    assert service(tmp_path, files).start.signal.value is signal


def test_an_unknown_base_may_have_an_entry_point_of_its_own(tmp_path):
    files = {"Dockerfile": f"FROM example.org/base:1\nCMD [{WORDS}]\n"}
    start = service(tmp_path, files).start
    assert start.signal.value is UNKNOWN
    assert "ENTRYPOINT of example.org/base:1" in start.question
    assert start.server.target == "app:app"


SCRIPTS = {
    "no exec": ("uvicorn app:app\n", LOST, "script_no_exec"),
    "exec": ("set -e\nalembic upgrade head\nexec uvicorn app:app\n", REACHES, "script_exec"),
    "exec after a probe": (
        "node probe.js >/dev/null 2>&1 || true\nexec uvicorn app:app\n",
        REACHES,
        "script_exec",
    ),
    "exec of the arguments after a probe": (
        'java -version\nif a; then exec gunicorn b:c; fi\nexec "$@"\n',
        REACHES,
        "script_exec",
    ),
    "no exec after a server": (
        "node server.js || true\nuvicorn app:app\n",
        LOST,
        "script_no_exec",
    ),
    "exec of the arguments": ('exec "$@"\n', REACHES, "script_exec"),
    "trap": (
        "trap 'kill -TERM $PID; wait $PID' TERM\nuvicorn app:app &\nPID=$!\nwait $PID\n",
        REACHES,
        "script_trap",
    ),
    "trap and a second wait": (
        "trap 'kill -TERM $PID' TERM\nuvicorn app:app &\nPID=$!\nwait $PID\nwait $PID\n",
        REACHES,
        "script_trap",
    ),
    "trap, and the wait that fails is caught": (
        "set -e\ntrap 'kill $PID' TERM\nuvicorn app:app &\nPID=$!\nwait $PID || true\nwait\n",
        REACHES,
        "script_trap",
    ),
    "trap without a second wait": (
        "trap 'kill -TERM $PID' TERM\nuvicorn app:app &\nPID=$!\nwait $PID\n",
        LOST,
        "script_trap_no_wait",
    ),
    "trap that exits": (
        "trap 'kill $(jobs -p); exit' INT TERM\nuvicorn app:app &\nwait -n\nwait\n",
        LOST,
        "script_trap_no_wait",
    ),
    "trap that calls a function, under set -e": (
        "set -e\nend() {\n kill $P\n}\ntrap end TERM\nuvicorn app:app &\nP=$!\nwait $P\nwait $P\n",
        LOST,
        "script_trap_no_wait",
    ),
    "a trap does not help the foreground": (
        "trap 'kill -TERM $PID' TERM\nuvicorn app:app\n",
        LOST,
        "script_no_exec",
    ),
    "two servers": ("uvicorn app:app &\nstreamlit run ui.py\n", LOST, "background_server"),
    "exec of the lesser one": (
        "uvicorn app:app &\nexec streamlit run ui.py\n",
        LOST,
        "background_server",
    ),
    "if with exec on both ways": (
        'if [ "$RELOAD" = 1 ]; then\n exec uvicorn a:b\nelse\n exec uvicorn app:app\nfi\n',
        REACHES,
        "script_exec",
    ),
    "if with exec on one way": (
        'if [ "$RELOAD" = 1 ]; then\n exec uvicorn app:app --reload\nfi\nuvicorn app:app\n',
        UNKNOWN,
        "several_ways",
    ),
    "case on the arguments": (
        'case "$1" in\n worker) celery -A app worker ;;\n *) exec "$@" ;;\nesac\n',
        REACHES,
        "script_exec",
    ),
    "case with a default": (
        'case "${1:-api}" in\n api) exec uvicorn app:app ;;\n *) exec "$@" ;;\nesac\n',
        REACHES,
        "script_exec",
    ),
    "a function": ('main() {\n exec "$@"\n}\nmain "$@"\n', REACHES, "script_exec"),
    "a function without exec": ("main() {\n uvicorn app:app\n}\nmain\n", LOST, "script_no_exec"),
    "a loop that starts it again": (
        "while true; do\n uvicorn app:app\n sleep 1\ndone\n",
        LOST,
        "script_no_exec",
    ),
    "or": ("alembic upgrade head || exit 1\nexec uvicorn app:app\n", REACHES, "script_exec"),
    "not shell at all": ("if then fi (((\n", UNKNOWN, "unknown_script"),
}


@pytest.mark.parametrize(("text", "signal", "shape"), SCRIPTS.values(), ids=SCRIPTS.keys())
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_scripts(tmp_path, text, signal, shape, shell):
    lines = f'ENTRYPOINT ["/app/start.sh"]\nCMD [{WORDS}]\n'
    found = image(tmp_path, lines, start_dot_sh=f"#!/bin/{shell}\n{text}")
    assert seen(found) == (signal, shape)


def test_every_step_is_told_with_its_line(tmp_path):
    found = image(
        tmp_path, 'ENTRYPOINT ["sh", "start.sh"]\n', start_dot_sh="#!/bin/sh\n\nuvicorn app:app\n"
    )
    told = [(each.file, each.line) for each in found.start.signal.evidence]
    assert told == [("Dockerfile", 4), ("start.sh", 3)]


def test_what_comes_before_the_server_is_kept(tmp_path):
    script = (
        "#!/bin/sh\nuntil pg_isready -h db; do sleep 1; done\nalembic upgrade head\n"
        "exec uvicorn app:app\n"
    )
    start = image(tmp_path, 'CMD ["sh", "start.sh"]\n', start_dot_sh=script).start
    assert [each.line for each in start.waits] == [2]
    assert [each.line for each in start.migrations] == [3]


def test_a_server_that_dies_unseen(tmp_path):
    start = image(tmp_path, 'CMD ["sh", "-c", "uvicorn app:app & streamlit run ui.py"]\n').start
    assert start.unwatched
    assert start.server.program == "uvicorn"
    assert start.server.is_background


def test_files_beside_a_server_are_no_server_that_matters(tmp_path):
    line = 'CMD ["sh", "-c", "python -m http.server 80 & uvicorn app:app"]\n'
    start = image(tmp_path, line).start
    assert start.server.program == "uvicorn"
    assert not start.unwatched


def test_a_python_program_is_asked_about(tmp_path):
    start = image(tmp_path, 'CMD ["python", "run.py"]\n', run_dot_py="import app\n").start
    assert start.shape == "python_program"
    assert (start.server.target, start.server.is_module) == ("run.py", False)


def test_a_plain_loop_is_none_that_handles_signals(tmp_path):
    code = "import time\nwhile True:\n    time.sleep(1)\n"
    start = image(tmp_path, 'CMD ["python", "run.py"]\n', run_dot_py=code).start
    assert (start.signal.value, start.shape) == (LOST, "python_no_handler")
    assert start.signal.evidence[-1].line == 2


def test_a_python_wrapper_around_a_server(tmp_path):
    code = 'import subprocess\n\nsubprocess.run(["uvicorn", "app:app"])\n'
    start = image(tmp_path, 'CMD ["python", "run.py"]\n', run_dot_py=code).start
    assert (start.signal.value, start.shape) == (LOST, "python_wrapper")


def test_a_command_of_the_projects_own_package(tmp_path):
    toml = '[project]\nname = "x"\n\n[project.scripts]\nserve-it = "pkg.main:run"\n'
    start = image(tmp_path, 'CMD ["serve-it"]\n', pyproject_dot_toml=toml).start
    assert (start.server.program, start.server.target) == ("python", "pkg.main:run")


OPTIONS = {
    "uvicorn a:b --workers 4": {"workers": "4"},
    "gunicorn -w 3 --graceful-timeout=60 -k uvicorn.workers.UvicornWorker a:b": {
        "workers": "3",
        "graceful_timeout_s": "60",
        "worker_class": "uvicorn.workers.UvicornWorker",
    },
    "uvicorn a:b --timeout-graceful-shutdown 20 --reload": {
        "graceful_timeout_s": "20",
        "reload": "true",
    },
    "fastapi dev app.py": {"reload": "true"},
    "uvicorn a:b": {},
}


@pytest.mark.parametrize(("line", "options"), OPTIONS.items())
def test_options_of_servers(tmp_path, line, options):
    words = ", ".join(f'"{word}"' for word in line.split())
    start = image(tmp_path, f"CMD [{words}]\n").start
    assert {name: known.value for name, known in start.options.items()} == options


def test_workers_come_from_the_environment_and_from_configuration(tmp_path):
    found = image(tmp_path, f"ENV WEB_CONCURRENCY=5\nCMD [{WORDS}]\n")
    assert found.workers.value == 5
    conf = "workers = 7\ngraceful_timeout = 40\n"
    found = image(tmp_path, 'CMD ["gunicorn", "a:b"]\n', gunicorn_dot_conf_dot_py=conf)
    assert found.workers.value == 7
    assert found.start.options["graceful_timeout_s"].evidence[0].file == "gunicorn.conf.py"


def test_all_words_of_process_1(tmp_path):
    found = image(tmp_path, 'ENTRYPOINT ["tini", "--"]\nCMD ["uvicorn", "a:b"]\n')
    assert found.start.argv == ("tini", "--", "uvicorn", "a:b")
    assert found.start.has_init


def test_what_a_supervisor_starts_is_found(tmp_path):
    conf = (
        "[supervisord]\n[program:web]\ncommand=nginx -g 'daemon off;'\n"
        "[program:api]\ncommand=uvicorn app:app --workers 2\n"
    )
    start = image(
        tmp_path,
        'COPY sup.conf /etc/sup.conf\nCMD ["supervisord", "-c", "/etc/sup.conf"]\n',
        sup_dot_conf=conf,
    ).start
    assert (start.signal.value, start.server.target) == (UNKNOWN, "app:app")
    assert start.options["workers"].value == "2"


@pytest.mark.parametrize(
    ("copied", "command"),
    [
        ("COPY sup.conf /etc/supervisor/conf.d/agent.conf", '["supervisord"]'),
        ("COPY sup.conf /etc/supervisor/conf.d/", '["/usr/bin/supervisord", "-n"]'),
        (
            "COPY sup.conf /etc/supervisor/conf.d/sup.conf",
            '["supervisord", "-c", "/etc/supervisor/supervisord.conf"]',
        ),
        ("COPY sup.conf /etc/supervisor/conf.d/", '["supervisord", "-c", "/srv/own.conf"]'),
    ],
)
def test_what_debian_has_a_supervisor_include(tmp_path, copied, command):
    conf = "[program:api]\ncommand=uvicorn app:app\n"
    start = image(tmp_path, f"{copied}\nCMD {command}\n", sup_dot_conf=conf).start
    found = start.server.target if start.server is not None else None
    assert found == (None if "own.conf" in command else "app:app")


WRITTEN = {
    "echo": 'RUN echo "#!/bin/sh\\nuvicorn app:app" > /start.sh\n',
    "printf over lines": "RUN printf '#!/bin/sh\\n\\\nuvicorn app:app\\n' > /start.sh\n",
    "here-document": "RUN cat > /start.sh <<EOF\n#!/bin/sh\nuvicorn app:app\nEOF\n",
}


@pytest.mark.parametrize("lines", WRITTEN.values(), ids=WRITTEN.keys())
def test_scripts_that_the_dockerfile_writes(tmp_path, lines):
    found = image(tmp_path, lines + 'CMD ["/start.sh"]\n')
    assert seen(found) == (LOST, "script_no_exec")
    assert found.start.signal.evidence[-1].line in {5, 6}


def test_a_server_behind_a_program_that_is_not_known(tmp_path):
    start = image(tmp_path, f'CMD ["doppler", "run", "--", {WORDS}]\n').start
    assert start.signal.value is UNKNOWN
    assert start.question == "Does 'doppler' hand SIGTERM on to what it starts?"
    assert start.server.target == "app:app"
    assert len(start.processes) == 1


def test_a_script_that_waits_and_goes_on(tmp_path):
    line = f'CMD ["./wait-for-it.sh", "db:5432", "--", {WORDS}]\n'
    start = image(tmp_path, line, wait_for_it_dot_sh="").start
    assert (start.signal.value, start.server.target) == (REACHES, "app:app")
    assert start.waits


def test_a_command_that_loses_the_signal_loses_it_behind_any_entry_point(tmp_path):
    files = {
        "Dockerfile": "FROM registry.example/base:1\nCOPY . /app\nWORKDIR /app\n",
        "start.sh": "#!/bin/bash\nset -e\nuvicorn app:app\n",
        "compose.yaml": "services:\n  api:\n    build: .\n    command: sh start.sh\n",
    }
    found = service(tmp_path, files)
    assert found.start.signal.value is LOST
    assert found.start.signal.confidence is Confidence.INFERRED


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("python worker.py &\nexec uvicorn app:app\n", 1),
        ("celery -A app worker &\nceleryctl &\nexec celery -A app beat\n", 1),
        ("work() {\n  celery -A app worker\n}\nwork &\nexec celery -A app beat\n", 1),
        ("python seed.py &\nexec uvicorn app:app\n", 0),
        ("python -m http.server &\nexec uvicorn app:app\n", 0),
        ("exec uvicorn app:app\n", 0),
    ],
)
def test_servers_in_the_background_of_the_one_that_counts(tmp_path, script, count):
    files = {
        "Dockerfile": SLIM + 'CMD ["bash", "start.sh"]\n',
        "start.sh": script,
        "worker.py": "while True:\n    pass\n",
        "seed.py": "print(1)\n",
    }
    assert len(service(tmp_path, files).start.beside) == count


LISTENER = """\
import asyncio
from slack_bolt.async_app import AsyncApp
from slack_bolt.adapter.socket_mode.async_handler import AsyncSocketModeHandler

async def main():
    await AsyncSocketModeHandler(AsyncApp(), "t").start_async()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (LISTENER, "python_no_handler"),
        (LISTENER + "# signal\n", "python_program"),
        (LISTENER.replace("asyncio.run(", "aiogram.run("), "python_program"),
        (
            "import asyncio\n\nasync def main():\n    pass\n\nasyncio.run(main())\n",
            "python_program",
        ),
    ],
)
def test_a_loop_of_asyncio_handles_no_signal(tmp_path, text, shape):
    files = {"Dockerfile": SLIM + 'CMD ["python", "main.py"]\n', "main.py": text}
    assert service(tmp_path, files).start.shape == shape


def test_a_long_list_of_commands_is_read_to_its_end(tmp_path):
    many = " && ".join(["echo x"] * 60)
    found = image(tmp_path, f'CMD ["sh", "-c", "{many} && alembic upgrade head && exec {APP}"]\n')
    assert found.start.signal.value is REACHES
    assert found.start.migrations


@pytest.mark.parametrize("runner", ["uv run", "poetry run"])
def test_a_command_of_the_project_behind_a_runner_is_followed_in_a_shell_too(tmp_path, runner):
    toml = '[project]\nname = "x"\n\n[project.scripts]\nserve-it = "pkg.main:run"\n'
    files = {"Dockerfile": SLIM + f"CMD {runner} serve-it\n", "pyproject.toml": toml}
    found = service(tmp_path, files)
    assert found.start.server.target == "pkg.main:run"
    assert found.start.signal.value is LOST
    sync = {**files, "Dockerfile": SLIM + f"CMD uv sync && exec {APP}\n"}
    assert service(tmp_path / "other", sync).start.server.program == "uvicorn"


def test_a_program_that_bash_executes_in_its_place_says_itself_what_it_does(tmp_path):
    found = image(tmp_path, 'CMD ["bash", "-c", "python main.py"]\n', main_dot_py="x = 1\n")
    assert found.start.shape == "python_program"


@pytest.mark.parametrize(
    ("last", "signal"),
    [
        ("my-server --port 80", LOST),
        ("say_goodbye done", Signal.UNKNOWN),
        ("apk add curl", Signal.UNKNOWN),
        ("az storage blob upload", Signal.UNKNOWN),
    ],
)
def test_a_shell_before_a_command_that_may_be_no_server_is_a_question(tmp_path, last, signal):
    start = image(tmp_path, 'CMD ["./run.sh"]\n', run_dot_sh=f"#!/bin/bash\n{last}\n").start
    assert start.signal.value is signal


@pytest.mark.parametrize("more", ["", "import sys\nsys.exit(0)\n"])
def test_a_file_whose_loop_may_be_left_is_asked_about(tmp_path, more):
    text = "import time\n\nwhile True:\n    time.sleep(1)\n"
    text += more.replace("\n", "\n    ").replace("import", "    import").rstrip(" ")
    files = {"Dockerfile": SLIM + 'CMD ["python", "main.py"]\n', "main.py": text}
    shape = service(tmp_path, files).start.shape
    assert shape == ("python_program" if more else "python_no_handler")


def test_supervisors_that_start_supervisors_are_followed_once(tmp_path):
    files = {
        "Dockerfile": SLIM + "COPY conf/ /etc/supervisor/conf.d/\nCMD supervisord\n",
        "conf/a.conf": "command=supervisord\n" * 12 + f"command={APP}\n",
    }
    start = service(tmp_path, files).start
    assert start.shape in {"supervisord", "shell_dash", "shell_bash"}
    nested = [one for one in start.processes if one.program == "uvicorn"]
    assert len(nested) <= 1
