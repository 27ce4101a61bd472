"""Edits of Compose files."""

import posixpath
import re

from msgspec import Struct

from perdure.contracts.check import Judged
from perdure.contracts.deployment._yaml import Node, read_yaml
from perdure.contracts.deployment.facts import Service
from perdure.contracts.files import Project
from perdure.contracts.findings import RootKind
from perdure.contracts.fix._applying import lines_of
from perdure.contracts.fix._yaml_lines import (
    Lines,
    block_lines,
    inserted,
    key_indent,
    own_lines,
    replaced,
)
from perdure.contracts.report import Edit
from perdure.contracts.rules._databases import data_folders

HEALTHCHECKS: dict[str, str] = {
    "postgres": '["CMD-SHELL", "pg_isready -h 127.0.0.1 -U $${POSTGRES_USER:-postgres}"]',
    "redis": '["CMD", "redis-cli", "ping"]',
    "mongo": '["CMD", "mongosh", "--quiet", "--eval", "db.adminCommand(\'ping\').ok"]',
    "mysql": '["CMD", "mysqladmin", "ping", "-h", "127.0.0.1"]',
}
"""Health checks that a client's connection passes, by the catalogue's name."""


class _Place(Struct, frozen=True, kw_only=True):
    """A service where it is declared in the open, in block style."""

    document: Node
    node: Node
    own: Lines
    file: str
    text: str

    def inserted(self, lines: list[str]) -> Edit | None:
        return inserted(self.text, self.file, self.own, lines)


def _place_of(project: Project, service: Service) -> _Place | None:
    file = service.place.file
    text = project.read(file)
    documents = read_yaml(project, file)
    services = documents[0].get("services") if len(documents) == 1 else None
    node = services.get(service.name) if services is not None else None
    if text is None or services is None or node is None or node.kind != "mapping":
        return None
    own = own_lines(text, services, service.name, node)
    if not own.key_lines or key_indent(text, own) is None:
        return None
    return _Place(document=documents[0], node=node, own=own, file=file, text=text)


def _set(project: Project, judged: Judged, key: str, value: str) -> tuple[Edit, ...]:
    if judged.root.kind is not RootKind.COMPOSE:
        return ()
    place = _place_of(project, judged.service)
    if place is None:
        return ()
    if key in place.own.key_lines:
        edit = replaced(place.text, place.file, place.own, key, value)
    else:
        edit = place.inserted([f"{key}: {value}"])
    return (edit,) if edit is not None else ()


def grace(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Give a service as much time to stop as the repair of R1 says."""
    needed = re.search(r"stop_grace_period: (\d+)s", judged.finding.repair or "")
    return _set(project, judged, "stop_grace_period", f"{needed.group(1)}s") if needed else ()


def restart(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Let a service be started again after a crash; not a job, which would run again for ever."""
    if judged.service.may_end:
        return ()
    return _set(project, judged, "restart", "unless-stopped")


def healthy_dependency(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Let a service wait until the database that the finding names is healthy."""
    if judged.root.kind is not RootKind.COMPOSE:
        return ()
    database = _database(judged)
    place = _place_of(project, judged.service)
    if database is None or place is None or database.place.file != place.file:
        return ()
    waiting = _waiting(place, database.name)
    if waiting is None:
        return ()
    healthcheck = () if database.health else _healthcheck(project, database)
    return () if healthcheck is None else (*waiting, *healthcheck)


def _database(judged: Judged) -> Service | None:
    places = {(each.file, each.line) for each in judged.finding.evidence}
    return next(
        (
            service
            for service in judged.root.services
            if service is not judged.service and (service.place.file, service.place.line) in places
        ),
        None,
    )


def _waiting(place: _Place, database: str) -> tuple[Edit, ...] | None:
    given = place.node.get("depends_on")
    wanted = [f"  {database}:", "    condition: service_healthy"]
    if given is None:
        edit = place.inserted(["depends_on:", *wanted])
        return (edit,) if edit is not None else None
    if given.kind == "mapping":
        return _in_mapping(place.text, place.file, given, database)
    span = block_lines(place.text, place.own, "depends_on")
    if given.kind != "sequence" or span is None or _has_comment(place.text, span):
        return None
    others = [item.text for item in given.items if item.text and item.text != database]
    lines = ["depends_on:"]
    for name in others:
        lines += [f"  {name}:", "    condition: service_started"]
    indent = key_indent(place.text, place.own) or ""
    whole = tuple(indent + each for each in (*lines, *wanted))
    return (Edit(file=place.file, line=span[0], removed=span[1], lines=whole),)


def _has_comment(text: str, place: tuple[int, int]) -> bool:
    begin, count = place
    return any("#" in line for line in lines_of(text)[begin - 1 : begin - 1 + count])


def _in_mapping(text: str, file: str, given: Node, database: str) -> tuple[Edit, ...] | None:
    entry = given.get(database)
    if entry is None:
        edit = inserted(text, file, given, [f"{database}:", "  condition: service_healthy"])
    elif "condition" in entry.entries:
        edit = replaced(text, file, entry, "condition", "service_healthy")
    else:
        edit = inserted(text, file, entry, ["condition: service_healthy"])
    return (edit,) if edit is not None else None


def _healthcheck(project: Project, database: Service) -> tuple[Edit, ...] | None:
    test = HEALTHCHECKS.get(database.image.catalog or "")
    place = _place_of(project, database)
    if test is None or place is None or "healthcheck" in place.node.entries:
        return None
    lines = ["healthcheck:", f"  test: {test}", "  interval: 5s", "  timeout: 5s", "  retries: 20"]
    edit = place.inserted(lines)
    return (edit,) if edit is not None else None


def volume(project: Project, judged: Judged) -> tuple[Edit, ...]:
    """Mount a named volume on the folder of data, where nothing else is in that folder."""
    if judged.root.kind is not RootKind.COMPOSE:
        return ()
    service, folder = _folder(judged)
    place = _place_of(project, service)
    if place is None or folder is None:
        return ()
    name = re.sub(r"[^a-z0-9_]+", "_", f"{service.name}_{posixpath.basename(folder)}".lower())
    mounts = place.node.get("volumes")
    mount = f"- {name}:{folder}"
    if mounts is None:
        mounted = place.inserted(["volumes:", f"  {mount}"])
    else:
        mounted = _item(place.text, place.file, mounts, mount)
    declared = _declared(place.text, place.file, place.document, name)
    return (mounted, declared) if mounted is not None and declared is not None else ()


def _folder(judged: Judged) -> tuple[Service, str | None]:
    """Return the service and the folder that a violation of S2 is about."""
    database = _database(judged)
    if database is not None:
        folders = data_folders(database)
        return database, folders[0] if folders else None
    service = judged.service
    found = re.search(r"the folder of (/[\w./-]+)\.", judged.finding.repair or "")
    if found is None:
        return service, None
    folder = posixpath.dirname(found.group(1))
    code = {service.workdir, *(source.container for source in service.sources)}
    # A volume over code would go on with the code of the first deploy.
    is_code = any(each == folder or each.startswith(f"{folder.rstrip('/')}/") for each in code)
    return service, None if is_code or folder in {"/", "/tmp"} else folder  # noqa: S108  # a name


def _item(text: str, file: str, mounts: Node, item: str) -> Edit | None:
    """Return the edit that puts an item at the head of a list in block style."""
    if mounts.kind != "sequence" or not mounts.items:
        return None
    line = mounts.items[0].line
    found = re.match(r"^([ ]*)- ", lines_of(text)[line - 1])
    if found is None:
        return None
    return Edit(file=file, line=line, removed=0, lines=(f"{found.group(1)}{item}",))


def _declared(text: str, file: str, document: Node, name: str) -> Edit | None:
    volumes = document.get("volumes")
    if volumes is None:
        end = len(lines_of(text)) + 1
        return Edit(file=file, line=end, removed=0, lines=("", "volumes:", f"  {name}:"))
    if volumes.kind != "mapping" or not volumes.key_lines:
        return None
    return inserted(text, file, volumes, [f"{name}:"])
