"""JobSpec as people write it, as gRPC carries it and as code uses it: three spellings of one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lehr.api.scheduler.v1 import job_pb2
from lehr.errors import FieldViolation, InvalidArgument
from lehr.training.adapters import ADAPTERS
from lehr.training.adapters.base import TARGET_MODULES_MAX, TargetedSpec
from lehr.training.methods import METHODS
from lehr.training.spec import BACKUP_TIERS_MAX, JobSpec, ScriptSpec

ALL_LINEAR = "all-linear"

SPEC_BYTES_MAX = 1024 * 1024
"""Of a spec as gRPC carries it; nearly all of it can only be a script."""

_PROBLEMS_MAX = 50

#: Fields that are one of several sections, and the ids of those.
_MEMBERS: Mapping[str, Mapping[str, type[BaseModel]]] = {
    "adapter": {name: adapter.spec for name, adapter in ADAPTERS.items()},
    "hyperparameters": {name: method.hyperparameters for name, method in METHODS.items()},
}


class SpecInvalid(InvalidArgument):
    """A spec does not describe a job; ``fields`` says where and what to do."""

    reason = "SPEC_INVALID"


def parse_spec(values: Mapping[str, Any]) -> JobSpec:
    """Read a spec from plain values, such as a YAML file holds.

    Raises:
        SpecInvalid: with every wrong field by its path.
    """
    try:
        return JobSpec.model_validate(dict(values))
    except ValidationError as error:
        raise _refused(_violations(error)) from None


def spec_from_proto(message: job_pb2.JobSpec) -> JobSpec:
    """Read a spec that came over gRPC; what is absent there takes its default.

    Raises:
        SpecInvalid: with every wrong field by its path.
    """
    _check_size(message)
    values: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    script = values.pop("script_json", "")
    if script:
        values["script"] = _script(script)
    # Zero is how gRPC says "off"; in YAML it is null or off.
    if values.get("early_stopping", {}).get("patience") == 0:
        values["early_stopping"]["patience"] = None
    if "adapter" in values:
        adapter = values["adapter"]
        adapter.update(adapter.pop("options", {}))
        if adapter.get("target_modules") == [ALL_LINEAR]:
            adapter["target_modules"] = ALL_LINEAR
    return parse_spec(values)


def spec_to_proto(spec: JobSpec) -> job_pb2.JobSpec:
    """Write a spec for gRPC; ``spec_from_proto`` gives the same one back.

    Raises:
        SpecInvalid: ``adapter.target_modules`` is a pattern, which gRPC does not carry.
    """
    values = _without_none(spec.model_dump(mode="json", exclude={"script"}))
    values["adapter"] = _adapter_to_proto(spec, values["adapter"])
    if "hyperparameters" in values:
        del values["hyperparameters"]["type"]
    if spec.early_stopping.patience is None:
        values["early_stopping"] = {"patience": 0}
    if spec.script is not None:
        values["script_json"] = spec.script.model_dump_json(exclude_none=True)
    return json_format.ParseDict(values, job_pb2.JobSpec())


def _adapter_to_proto(spec: JobSpec, values: dict[str, Any]) -> dict[str, Any]:
    """Return the adapter's fields, those that the message does not name under ``options``."""
    if isinstance(spec.adapter, TargetedSpec):
        modules = spec.adapter.target_modules
        if modules == type(spec.adapter).model_fields["target_modules"].default:
            # What is absent takes the adapter's own default.
            del values["target_modules"]
        elif modules == ALL_LINEAR:
            values["target_modules"] = [ALL_LINEAR]
        elif isinstance(modules, str) or not modules:
            wrong = f"is {modules!r}; give {ALL_LINEAR} or a list of layer names"
            raise _refused([FieldViolation(field="adapter.target_modules", description=wrong)])
    named = job_pb2.AdapterSpec.DESCRIPTOR.fields_by_name.keys()
    options = {name: value for name, value in values.items() if name not in named}
    return {**{name: value for name, value in values.items() if name in named}, "options": options}


def _check_size(message: job_pb2.JobSpec) -> None:
    """Refuse what is too much before time is spent on reading it."""
    wrong = [
        FieldViolation(field=field, description=f"has {count} {what}; give at most {most}")
        for field, what, count, most in (
            ("spec", "bytes", message.ByteSize(), SPEC_BYTES_MAX),
            ("backup_tiers", "names", len(message.backup_tiers), BACKUP_TIERS_MAX),
            (
                "adapter.target_modules",
                "names",
                len(message.adapter.target_modules),
                TARGET_MODULES_MAX,
            ),
        )
        if count > most
    ]
    if wrong:
        raise _refused(wrong)


def _script(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        wrong = "is nested too deeply; give the JSON of a scripted run"
        raise _refused([FieldViolation(field="script_json", description=wrong)]) from None
    except ValueError as error:
        wrong = f"is not JSON ({error}); give the JSON of a scripted run"
        raise _refused([FieldViolation(field="script_json", description=wrong)]) from None


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }


def _refused(fields: list[FieldViolation]) -> SpecInvalid:
    told = "; ".join(f"{one.field} {one.description}" for one in fields[:5])
    more = f"; and {len(fields) - 5} more" if len(fields) > 5 else ""
    return SpecInvalid(f"the job cannot be read: {told}{more}", fields=fields)


def _violations(error: ValidationError) -> list[FieldViolation]:
    """Return what is wrong; of a flood of mistakes the first, and how many more there are."""
    count = error.error_count()
    found = [_violation(detail) for detail in error.errors()[:_PROBLEMS_MAX]]
    if count > _PROBLEMS_MAX:
        told = f"has {count - _PROBLEMS_MAX} more mistakes"
        found.append(FieldViolation(field="job", description=told))
    return found


def _violation(detail: ErrorDetails) -> FieldViolation:
    place = _without_tag(detail["loc"])
    path = ".".join(str(part) for part in place) or "job"
    match detail["type"]:
        case "missing":
            told = "is missing; set it"
        case "extra_forbidden":
            told = f"is not a field; {_known_fields(detail['loc'])}"
        case "model_type" | "dict_type":
            told = f"is {_shown(detail)}; write its fields, each with a value"
        case "union_tag_invalid":
            known = ", ".join(_MEMBERS[str(place[0])])
            path, told = f"{path}.type", f"is {detail['ctx']['tag']!r}; use {known}"
        case "invalid_key":
            told = "is not a field; names of fields are text"
        case "string_pattern_mismatch":
            told = (
                f"is {_shown(detail)}; use lower-case letters, digits, dot, dash and underscore, "
                "and @ with a revision of 12 to 64 hex digits where one is pinned"
            )
        case _:
            wanted = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
            told = f"is {_shown(detail)}; it {wanted}"
    return FieldViolation(field=path, description=told)


def _without_tag(place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return the place of a mistake without the name of the union's member, which nobody wrote."""
    is_tagged = len(place) > 1 and place[0] in _MEMBERS and place[1] in _MEMBERS[str(place[0])]
    return (place[0], *place[2:]) if is_tagged else place


def _shown(detail: ErrorDetails) -> str:
    return repr(detail["input"])[:60]


def _kind_of(part: str, path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the section of a field that its annotation does not give."""
    if part == "script":
        return ScriptSpec
    members = _MEMBERS.get(part)
    return None if members is None else members.get(str(path[1]))


def _known_fields(path: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = JobSpec
    for part in _without_tag(path)[:-1]:
        field = section.model_fields.get(str(part))
        kind = _kind_of(str(part), path) or (field.annotation if field else None)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return "leave it out"
        section = kind
    known = list(section.model_fields)
    near = difflib.get_close_matches(str(path[-1])[:100], known, n=1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
