"""JSON schema of run files, made from the annotations of kinds of model and of sections."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from ..kinds.description import default_of, entries_of, fields_of, hints_of
from ..kinds.registry import KINDS, kind_class
from ..kinds.values import Range, Word, members, written
from .sections import NOT_WRITTEN, SECTIONS

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_BOUNDS = {"least": "minimum", "most": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}
COMMAND_LINE = ("allow_remote",)  # keys that only a command line can give


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of run files, in which the model is a union over all kinds."""
    sections = {name: _section(cls) for name, cls in SECTIONS.items()}
    sections["collection"]["required"] = ["source"]
    model = {"anyOf": [_kind(kind) for kind in KINDS]}
    apply = {"type": "string", "description": "Fitted model to apply."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "streampca run file",
        **_object({**sections, "model": model, "apply": apply}),
        "required": ["collection"],
    }


def _kind(kind: str) -> dict[str, Any]:
    """Return the schema of the section `model` for one kind."""
    schema = _section(kind_class(kind))
    key: dict[str, Any] = {"const": kind, "description": "Kind of model."}
    required = {} if kind == "pca" else {"required": ["kind"]}  # PCA is the default
    return {**schema, "title": kind, "properties": {"kind": key, **schema["properties"]}, **required}


def _section(cls: type) -> dict[str, Any]:
    """Return the schema of a section: a property for each field, described as in help."""
    entries, hints = entries_of(cls), hints_of(cls)
    properties = {}
    for name, field in fields_of(cls).items():
        if name in NOT_WRITTEN or name in COMMAND_LINE:
            continue
        properties[name] = _schema(written(hints[name])) | {"default": default_of(field)}
        if name in entries:
            properties[name]["description"] = entries[name].first_sentence
    return _object(properties)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _schema(annotation: Any) -> dict[str, Any]:
    schemas = [_member(member) for member in members(annotation)]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _member(member: Any) -> dict[str, Any]:
    """Return the schema of one member of a union."""
    base, marks = (get_args(member)[0], member.__metadata__) if get_origin(member) is Annotated else (member, ())
    kind, parts = get_origin(base) or base, get_args(base)
    if kind is Literal:
        return {"enum": list(parts)}
    if kind in (None, NoneType):
        words = [mark.text for mark in marks if isinstance(mark, Word)]
        return {"enum": [None, *words]} if words else {"type": "null"}
    if kind is list:
        return {"type": "array", "items": _schema(parts[0])}
    if kind is tuple:
        items = [_schema(part) for part in parts]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if kind in (dict, Mapping):
        return {"type": "object"}
    bounds = [mark for mark in marks if isinstance(mark, Range)]
    limits = {_BOUNDS[name]: value for mark in bounds for name, value in vars(mark).items() if value is not None}
    return {"type": _TYPES[kind], **limits} if kind in _TYPES else {}
