"""What a Compose service mounts, and how long what is written there lives."""

import posixpath
import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from perdure.contracts.deployment._compose import split_mount, target_of
from perdure.contracts.deployment._stages import Built
from perdure.contracts.deployment._variables import Variables
from perdure.contracts.deployment._yaml import Node, truth
from perdure.contracts.deployment.facts import Lifetime, Mount, Source


class Mounts(Struct, frozen=True, kw_only=True):
    """Reads the mounts of one service."""

    node: Node
    variables: Variables
    volumes: Mapping[str, Node]
    """Those that the composition declares."""

    def read(self, built: Built | None) -> tuple[list[Mount], list[Source]]:
        """Return the mounts, those of the image too, and what of the project they show."""
        mounts: list[Mount] = []
        sources = list(built.sources) if built is not None else []
        for item in _items(self.node.get("volumes")):
            mount = self._mount(item)
            if mount is None:
                continue
            mounts.append(mount)
            if mount.kind == "bind" and _is_of_project(mount.source):
                sources.append(Source(container=mount.path, project=mount.source or ""))
        tmpfs = self.node.get("tmpfs")
        for item in _items(tmpfs) or ([tmpfs] if tmpfs is not None else []):
            path = filled(self.variables, item).partition(":")[0]
            here = (item.evidence("held in memory"),)
            mounts.append(Mount(path=path, lifetime=Lifetime.TMPFS, kind="tmpfs", evidence=here))
        taken = {mount.path.rstrip("/") for mount in mounts}
        for path, here_ in built.volumes if built is not None else []:
            if path.rstrip("/") not in taken:
                mounts.append(
                    Mount(
                        path=path,
                        lifetime=Lifetime.ANONYMOUS,
                        kind="image_volume",
                        evidence=(here_,),
                        is_shared=False,
                    )
                )
        return mounts, sources

    def _mount(self, item: Node) -> Mount | None:
        if item.kind == "mapping":
            kind = item.text_at("type") or "volume"
            source = item.get("source") or item.get("src")
            named = filled(self.variables, source) if source is not None else None
            read_only = truth(item.text_at("read_only")) is True
            target = item.get("target") or item.get("dst")
            path = filled(self.variables, target) if target is not None else ""
        else:
            words = split_mount(item.text or "")
            words = [filled(self.variables, replace(item, scalar=word)) for word in words]
            kind = "bind" if re.match(r"^[./~$]", words[0]) and len(words) > 1 else "volume"
            named = words[0] if len(words) > 1 else None
            path = words[1] if len(words) > 1 else words[0]
            read_only = "ro" in words[2].split(",") if len(words) > 2 else False  # noqa: PLR2004
        if not path or not target_of(item):
            return None
        return self._mount_of(item, kind, named, path, read_only=read_only)

    def _mount_of(
        self, item: Node, kind: str, source: str | None, path: str, *, read_only: bool
    ) -> Mount:
        lifetime = Lifetime.NAMED
        is_shared: bool | None = True
        if kind == "tmpfs":
            lifetime, is_shared = Lifetime.TMPFS, False
        elif kind == "volume" and source is None:
            lifetime, is_shared = Lifetime.ANONYMOUS, False
        elif kind == "bind" and source is not None and not source.startswith(("/", "~", "$")):
            folder = item.file.rpartition("/")[0]
            source = posixpath.normpath(posixpath.join(folder, source))
            source = "" if source == "." else source
        elif kind == "volume" and self._is_memory_volume(source):
            lifetime = Lifetime.TMPFS
        note = f"{path} is {_WHAT.get(kind, 'mounted')}" + (f" ({source})" if source else "")
        if lifetime is Lifetime.ANONYMOUS:
            note = f"{path} is a volume without a name"
        return Mount(
            path=posixpath.normpath(path) if path.startswith("/") else path,
            lifetime=lifetime,
            kind=kind,
            evidence=(item.evidence(note),),
            source=source,
            read_only=read_only,
            is_shared=is_shared,
        )

    def _is_memory_volume(self, name: str | None) -> bool:
        volume = self.volumes.get(name or "")
        return volume is not None and volume.text_at("driver_opts", "type") == "tmpfs"


def _is_of_project(source: str | None) -> bool:
    return source is not None and not source.startswith(("/", "~", "$", ".."))


_WHAT = {"bind": "a path of the host", "volume": "a named volume", "tmpfs": "held in memory"}


def filled(variables: Variables, node: Node) -> str:
    """Return a scalar with the variables that are known; others stay as they are written."""
    known = variables.replace(node.scalar or "", node.evidence(""))
    return known.value if known.value is not None else (node.scalar or "").replace("$$", "$")


def _items(node: Node | None) -> list[Node]:
    return node.items if node is not None else []
