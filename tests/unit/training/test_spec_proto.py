"""A spec says the same in YAML, over gRPC and in code."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from lehr.api.scheduler.v1 import job_pb2
from lehr.training.canonical import spec_digest, spec_json
from lehr.training.proto import (
    SPEC_BYTES_MAX,
    SpecInvalid,
    parse_spec,
    spec_from_proto,
    spec_to_proto,
)

LEAST: dict[str, Any] = {"name": "tune", "model": "smol", "dataset": "qa"}

SPECS = st.fixed_dictionaries(
    {
        "name": st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
        "model": st.just("smol@" + "a" * 12),
        "dataset": st.just("qa"),
    },
    optional={
        "gpus": st.integers(1, 1024),
        "priority": st.integers(-100, 100),
        "backup_tiers": st.lists(st.sampled_from(["h", "l", "s"]), unique=True),
        "backup_after_seconds": st.integers(0, 86_400),
        "early_stopping": st.fixed_dictionaries({"patience": st.sampled_from([None, 3, 4, 5])}),
        "adapter": st.just({"type": "full"})
        | st.fixed_dictionaries(
            {"target_modules": st.sampled_from(["all-linear", ["q_proj"], ["q_proj", "v_proj"]])},
            optional={"type": st.sampled_from(["lora", "qlora"]), "lora_dropout": st.just(0.05)},
        ),
        "training": st.fixed_dictionaries(
            {},
            optional={
                "learning_rate": st.floats(1e-9, 1.0),
                "max_steps": st.integers(-1, 1000),
                "num_train_epochs": st.floats(0.1, 10),
                "gradient_checkpointing": st.booleans(),
            },
        ),
        "data": st.fixed_dictionaries(
            {}, optional={"max_length": st.integers(8, 9999), "validation_split": st.floats(0, 0.9)}
        ),
        "script": st.fixed_dictionaries(
            {"steps": st.dictionaries(st.integers(1, 99), st.just({"loss": 1.5}), max_size=3)}
        ),
    },
)


@given(SPECS)
def test_what_went_over_grpc_is_what_it_was(values: dict[str, Any]) -> None:
    spec = parse_spec(values)

    message = job_pb2.JobSpec.FromString(spec_to_proto(spec).SerializeToString())

    assert spec_from_proto(message) == spec


def test_what_is_absent_takes_its_default() -> None:
    assert spec_from_proto(job_pb2.JobSpec(**LEAST)) == parse_spec(LEAST)


@pytest.mark.parametrize("gpus", [0, -1])
def test_no_gpus_are_refused_though_they_are_protos_default(gpus: int) -> None:
    with pytest.raises(SpecInvalid) as error:
        spec_from_proto(job_pb2.JobSpec(**LEAST, gpus=gpus))

    assert [one.field for one in error.value.fields] == ["gpus"]
    assert f"is {gpus}" in error.value.fields[0].description


def test_half_a_gpu_is_refused() -> None:
    with pytest.raises(SpecInvalid, match=r"gpus is 2.5"):
        parse_spec(LEAST | {"gpus": 2.5})


def test_every_mistake_is_told_at_once_by_its_path() -> None:
    wrong = {"name": "a\0", "model": "BAD", "training": {"learning_rat": 1}, "gpu": 1}

    with pytest.raises(SpecInvalid) as error:
        parse_spec(wrong)

    fields = {one.field: one.description for one in error.value.fields}
    assert set(fields) == {"name", "model", "dataset", "training.learning_rat", "gpu"}
    assert fields["training.learning_rat"].endswith("did you mean learning_rate?")
    assert fields["gpu"].endswith("did you mean gpus?")


@pytest.mark.parametrize("script", ["{", '{"total_steps": 0}', "[]"])
def test_a_script_that_is_none_is_refused(script: str) -> None:
    with pytest.raises(SpecInvalid, match="script"):
        spec_from_proto(job_pb2.JobSpec(**LEAST, script_json=script))


@pytest.mark.parametrize("script", ["[" * 100_000, '{"steps":' * 100_000])
def test_a_script_that_is_nested_without_end_is_refused(script: str) -> None:
    with pytest.raises(SpecInvalid, match="script_json is nested too deeply"):
        spec_from_proto(job_pb2.JobSpec(**LEAST, script_json=script))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"backup_tiers": [str(number) for number in range(17)]}, "backup_tiers"),
        ({"adapter": {"target_modules": ["q"] * 65}}, "adapter.target_modules"),
        ({"script_json": " " * (SPEC_BYTES_MAX + 1)}, "spec"),
    ],
)
def test_a_flood_is_refused_before_it_is_read(
    more: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = json_format.ParseDict(LEAST | more, job_pb2.JobSpec())
    monkeypatch.delattr(json_format, "MessageToDict")

    with pytest.raises(SpecInvalid, match="give at most") as refused:
        spec_from_proto(message)

    assert [one.field for one in refused.value.fields] == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tier", "t" * 64),
        ("method", "m" * 64),
        ("backup_tiers", ["t" * 64]),
        ("backup_tiers", [f"t{number}" for number in range(17)]),
        ("adapter", {"target_modules": ["q"] * 65}),
        ("adapter", {"target_modules": ["q\0"]}),
        ("adapter", {"target_modules": "q" * 201}),
        ("training", {"num_train_epochs": 1e10}),
        ("training", {"warmup_steps": 2**31}),
        ("training", {"eval_steps": 2**31}),
        ("training", {"save_steps": 2**31}),
        ("data", {"max_train_samples": 2**31}),
        ("data", {"max_eval_samples": 2**31}),
        ("script", {"steps": {number: {} for number in range(10_001)}}),
        ("script", {"steps": {1: {"print_bytes_base64": "a\0"}}}),
    ],
)
def test_what_is_too_much_or_no_text_is_refused_by_its_path(field: str, value: Any) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_spec(LEAST | {field: value})

    assert all(one.field.startswith(field) for one in refused.value.fields)


def test_of_a_flood_of_mistakes_the_first_are_told_and_how_many_more() -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_spec(LEAST | {f"odd_{number}": 1 for number in range(1000)})

    assert len(refused.value.fields) == 51
    assert refused.value.fields[-1].description == "has 950 more mistakes"


def test_a_pattern_of_modules_does_not_become_a_list_silently() -> None:
    with pytest.raises(SpecInvalid, match="list of layer names"):
        spec_to_proto(parse_spec(LEAST | {"adapter": {"target_modules": ".*_proj"}}))


def test_a_learning_rate_that_is_not_finite_is_refused() -> None:
    training = job_pb2.TrainingSpec(learning_rate=float("nan"))

    with pytest.raises(SpecInvalid, match=r"training\.learning_rate"):
        spec_from_proto(job_pb2.JobSpec(**LEAST, training=training))


def test_equal_specs_have_equal_digests_and_others_do_not() -> None:
    explicit = parse_spec(LEAST | {"gpus": 1, "method": "sft"})

    assert spec_json(explicit) == spec_json(parse_spec(LEAST))
    assert spec_digest(explicit) != spec_digest(parse_spec(LEAST | {"priority": 1}))
