"""What the fields of settings classes are: variables of the environment, then their defaults."""

import ast

from msgspec.structs import replace

from perdure.contracts.code import limits
from perdure.contracts.code._configured import given, leaf_of, of_file
from perdure.contracts.code._scopes import Assign, Scope, last_name, walk
from perdure.contracts.code._values import (
    Evaluating,
    Instance,
    Kind,
    Leaf,
    replace_value,
    unknown,
)
from perdure.contracts.evidence import Confidence, Evidence
from perdure.contracts.numbers import decimal

_TRUE = {"true", "1", "yes", "on", "t", "y"}
_FALSE = {"false", "0", "no", "off", "f", "n"}
_FIELDS = {"Field", "field", "PrivateAttr", "setting"}


class Settings:
    """Evaluates fields of classes that read the environment by themselves."""

    def __init__(self, flow: Evaluating) -> None:
        """Ask `flow` for everything else."""
        self.flow = flow
        self._known: dict[int, bool] = {}

    def is_settings(self, owner: Scope) -> bool:
        """Whether a class derives from pydantic's `BaseSettings`, under whatever name."""
        if id(owner) not in self._known:
            self._known[id(owner)] = False  # for classes that derive from themselves
            names = {last_name(base) for base in getattr(owner.node, "bases", ())}
            self._known[id(owner)] = "BaseSettings" in names or any(
                self.is_settings(base) for base in self.flow.program.bases(owner)
            )
        return self._known[id(owner)]

    def field(self, instance: Instance, name: str) -> list[Leaf]:
        """Return what a field of settings may be; empty if they have no such field."""
        for owner in self._line(instance.scope):
            for assign in owner.assigns.get(name, [])[-1:]:
                if isinstance(assign.target, ast.Name) and self._is_field(owner, name):
                    return self._value(instance, owner, name, assign)
        return []

    def _line(self, owner: Scope) -> list[Scope]:
        found = [owner]
        for one in found:
            if len(found) > limits.FLOW_DEPTH_MAX:
                break
            found.extend(base for base in self.flow.program.bases(one) if base not in found)
        return found

    @staticmethod
    def _is_field(owner: Scope, name: str) -> bool:
        return name != "model_config" and name not in owner.inner

    def _value(self, instance: Instance, owner: Scope, name: str, assign: Assign) -> list[Leaf]:
        if instance.node is not None:
            for keyword in instance.node.keywords:
                if keyword.arg == name:
                    return self.flow.leaves(keyword.value, instance.frame)
            spread = given(self.flow, instance.node, name, instance.frame)
            if spread is not None:
                return spread
        place = Evidence(file=owner.path, line=assign.line, note=f"the setting {name}")
        for variable in self._variables(instance, name, assign):
            found = self.flow.environment.get(variable, place)
            if not found.is_unset and not (found.kind is Kind.CONST and found.value == ""):
                return [_converted(found, assign)]
        listed = self._listed(instance, owner, name)
        if listed is not None:
            return [_converted(listed, assign)]
        note = f"{name} is set nowhere, so its default applies"
        step = Evidence(file=owner.path, line=assign.line, note=note)
        default = self.default(assign.value, owner)
        if default is None and assign.value is not None:
            default = self.flow.leaves(assign.value, self.flow.frame(owner))
        if not default:
            variable = self._variables(instance, name, assign)[0]
            return [replace(unknown(f"the value of {variable}", (step,)), settings=(variable,))]
        told = (self._variables(instance, name, assign)[0],)
        return [
            replace(leaf, settings=told).after((step,), Confidence.DECLARED_DEFAULT)
            for leaf in default
        ]

    def _listed(self, instance: Instance, owner: Scope, name: str) -> Leaf | None:
        """Return what the file says that the settings are read from: `yaml_file` and its kin."""
        for one in self._line(instance.scope):
            for assign in one.assigns.get("model_config", []):
                for kind in ("yaml_file", "toml_file", "json_file"):
                    path = _word(assign.value, kind)
                    found = of_file(self.flow, path) if path is not None else None
                    node = found.get(name) if found is not None else None
                    if node is not None:
                        return leaf_of(self.flow, name, node, self.flow.frame(owner))
        return None

    def _variables(self, instance: Instance, name: str, assign: Assign) -> list[str]:
        names = self._aliases(assign.value)
        if not names:
            names = [f"{instance.prefix or self._prefix(instance.scope)}{name}"]
        return list(
            dict.fromkeys(form for one in names for form in (one, one.upper(), one.lower()))
        )

    @staticmethod
    def _aliases(value: ast.expr | None) -> list[str]:
        if not isinstance(value, ast.Call) or last_name(value.func) not in _FIELDS:
            return []
        found: list[str] = []
        for keyword in value.keywords:
            if keyword.arg in {"alias", "validation_alias", "env"}:
                found.extend(
                    node.value
                    for node in walk(keyword.value)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                )
        return found

    def _prefix(self, owner: Scope) -> str:
        for one in self._line(owner):
            for assign in one.assigns.get("model_config", []):
                found = _word(assign.value, "env_prefix")
                if found is not None:
                    return found
            for config in one.inner.get("Config", []):
                for assign in config.assigns.get("env_prefix", []):
                    if isinstance(assign.value, ast.Constant):
                        return str(assign.value.value)
        return ""

    def default(self, value: ast.expr | None, owner: Scope) -> list[Leaf] | None:
        """Return what `Field(...)` gives by default; empty if it must be set."""
        if not isinstance(value, ast.Call) or last_name(value.func) not in _FIELDS:
            return None
        frame = self.flow.frame(owner)
        told = value.args[0] if value.args else None
        for keyword in value.keywords:
            if keyword.arg == "default":
                told = keyword.value
            elif keyword.arg == "default_factory":
                return self._made(keyword.value, owner)
        if told is None or (isinstance(told, ast.Constant) and told.value is ...):
            return []
        return self.flow.leaves(told, frame)

    def _made(self, factory: ast.expr, owner: Scope) -> list[Leaf]:
        frame = self.flow.frame(owner)
        if isinstance(factory, ast.Lambda):
            return self.flow.leaves(factory.body, frame)
        call = ast.copy_location(ast.Call(func=factory, args=[], keywords=[]), factory)
        return self.flow.leaves(call, frame)


def _word(value: ast.expr | None, name: str) -> str | None:
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == name and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if (
                isinstance(key, ast.Constant)
                and key.value == name
                and isinstance(item, ast.Constant)
            ):
                return str(item.value)
    return None


def _converted(leaf: Leaf, assign: Assign) -> Leaf:
    """Return a variable's text as the type that its default shows."""
    if leaf.kind is not Kind.CONST or not isinstance(leaf.value, str):
        return leaf
    default = assign.value
    if isinstance(default, ast.Call) and default.args:
        default = default.args[0]
    if isinstance(default, ast.Call):
        default = next((k.value for k in default.keywords if k.arg == "default"), None)
    known = default.value if isinstance(default, ast.Constant) else None
    text = leaf.value.strip()
    if isinstance(known, bool):
        return replace_value(leaf, _truth(text))
    if isinstance(known, int | float):
        number = decimal(text)
        if number is None:
            return unknown(f"a number instead of {text[: limits.SHOWN_MAX]!r}")
        return replace_value(leaf, number if "." in text else int(number))
    return leaf


def _truth(text: str) -> object:
    if text.lower() in _TRUE:
        return True
    return False if text.lower() in _FALSE else text
