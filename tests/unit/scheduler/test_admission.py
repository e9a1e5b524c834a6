"""What is refused at creation, what is warned of, and what a plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.money import Money
from services.scheduler.domain.admission import (
    check_capacity,
    check_rows,
    check_spec,
    warnings_of,
)
from services.scheduler.domain.errors import JobRefused
from services.scheduler.domain.estimate import Work, estimate, operations
from services.scheduler.domain.plan import Offer, Plan, make_plan, resolve_spec, total_steps
from tests.support.scheduler import NOON, SECOND, a_spec, a_tier, resolved, some_rows

KNOWN = {"h": a_tier("h", 8, 8), "l": a_tier("l", 1, each=1), "gone": a_tier("gone")}


def refused_fields(error: pytest.ExceptionInfo[JobRefused]) -> list[str]:
    return [one.field for one in error.value.fields]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"tier": "nosuch"}, ["tier"]),
        ({"tier": "h", "gpus": 32}, ["gpus"]),
        ({"tier": "h", "gpus": 12}, ["gpus"]),
        ({"tier": "h", "backup_tiers": ["nosuch"]}, ["backup_tiers.0"]),
        ({"tier": "h", "backup_tiers": ["l"], "gpus": 4}, ["backup_tiers.0"]),
        ({"tier": "gone"}, ["tier"]),
    ],
)
def test_what_no_node_could_ever_run_is_refused(fields: dict[str, Any], wrong: list[str]) -> None:
    with pytest.raises(JobRefused) as error:
        check_capacity(a_spec(**fields), KNOWN)

    assert refused_fields(error) == wrong


def test_the_refusal_names_the_limit() -> None:
    with pytest.raises(JobRefused, match=r"12 GPUs of one node are asked for.* more than 8 h"):
        check_capacity(a_spec(tier="h", gpus=12), KNOWN)


def test_the_known_tiers_are_listed_once_however_many_are_unknown() -> None:
    spec = a_spec(tier="nosuch", backup_tiers=["h", "nor", "either"])

    with pytest.raises(JobRefused) as error:
        check_capacity(spec, KNOWN)

    assert [one.description for one in error.value.fields] == [
        "there is no tier 'nosuch'; use one of gone, h, l",
        "there is no tier 'nor'",
        "there is no tier 'either'",
    ]


def test_more_steps_than_any_job_may_take_are_refused() -> None:
    rows = some_rows(row_count=10_000, train_count=9_000)

    with pytest.raises(JobRefused, match="more than 100000000 optimiser steps") as error:
        check_rows(a_spec(training={"num_train_epochs": 100_000}), resolved(data=rows))

    assert refused_fields(error) == ["training.num_train_epochs"]


def test_a_tier_whose_nodes_are_away_is_no_reason_while_a_backup_is_there() -> None:
    spec = a_spec(tier="gone", backup_tiers=["l"])

    check_capacity(spec, KNOWN)

    assert "no node with gone is connected at present" in warnings_of(spec, resolved(), KNOWN)


def test_a_scripted_run_needs_test_hooks() -> None:
    spec = a_spec(script={})

    check_spec(spec, script_allowed=True)
    with pytest.raises(JobRefused, match="test hooks"):
        check_spec(spec, script_allowed=False)


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("distill", {"teacher_model": "big"}),
        ("grpo", {"rewards": [{"type": "reward_model", "model": "big"}]}),
    ],
)
def test_a_second_model_is_refused_as_no_node_is_given_one(
    method: str, own: dict[str, Any]
) -> None:
    spec = a_spec(method=method, hyperparameters=own, training={"per_device_train_batch_size": 8})

    with pytest.raises(JobRefused, match="names big, and a node is given the base model alone"):
        check_spec(spec, script_allowed=False)


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(JobRefused, match=r"unknown method 'magic'; use .*sft"):
        check_spec(a_spec(method="magic"), script_allowed=False)


def test_an_empty_training_set_is_refused_with_the_counts() -> None:
    rows = some_rows(row_count=1, train_count=0, validation_count=0, dropped_count=1)

    with pytest.raises(JobRefused, match="1 of 1 rows are longer than 256 tokens"):
        check_rows(a_spec(), resolved(data=rows))


def test_a_split_that_leaves_no_validation_rows_is_refused() -> None:
    rows = some_rows(row_count=1, train_count=1, validation_count=0)

    with pytest.raises(JobRefused, match="no validation rows are left beside 1 training rows"):
        check_rows(a_spec(), resolved(data=rows))


def test_without_validation_early_stopping_is_off_and_said_to_be() -> None:
    spec = a_spec(data={"validation_split": 0.0})
    found = resolved(data=some_rows(validation_count=0))

    check_rows(spec, found)

    assert resolve_spec(spec, found.data).early_stopping.patience is None
    assert any(
        "early stopping is off" in told
        for told in warnings_of(spec, found, KNOWN | {"cpu": a_tier("cpu", 1)})
    )


def test_rows_of_another_kind_are_refused() -> None:
    with pytest.raises(JobRefused) as error:
        check_rows(a_spec(), resolved(row_kind="pictures"))

    assert refused_fields(error) == ["dataset"]


def test_counts_of_cut_and_dropped_rows_are_warned_of() -> None:
    rows = some_rows(truncated_count=5, untrainable_count=2)

    told = warnings_of(a_spec(tier="l"), resolved(data=rows), KNOWN)

    assert "5 of 100 rows keep only their last 256 tokens" in told
    assert any(one.startswith("2 of 100 rows are left out because nothing") for one in told)


def test_a_gpu_too_small_for_the_weights_is_warned_of() -> None:
    spec = a_spec(tier="l", adapter={"type": "full"})

    told = warnings_of(spec, resolved(parameter_count=70_000_000_000), KNOWN)

    assert any("may run out of memory" in one for one in told)


@pytest.mark.parametrize(
    ("adapter", "needed"),
    [
        ({"type": "qlora"}, 2.6e9),
        ({"type": "qlora", "load_in_8bit": True}, 5e9),
        ({"type": "lora"}, 10e9),
        ({"type": "freeze"}, 10e9),
        ({"type": "full"}, 80e9),
    ],
)
def test_packed_weights_need_less_memory_and_trained_ones_more(
    adapter: dict[str, Any], needed: float
) -> None:
    spec = a_spec(tier="l", adapter=adapter, training={"precision": "bf16"})

    def warned(memory_bytes: float) -> bool:
        tiers = {**KNOWN, "l": replace(KNOWN["l"], memory_bytes=int(memory_bytes))}
        told = warnings_of(spec, resolved(parameter_count=5_000_000_000), tiers)
        return any("may run out of memory" in one for one in told)

    assert warned(needed * 0.98)
    assert not warned(needed * 1.02)


@pytest.mark.parametrize(
    ("parameter_count", "too_small"),
    [
        # 48 layers of 128 experts, three matrices of 768 x 2048 each: 57,982,058,496 bytes.
        (28_991_029_248, ["l4", "l40s"]),
        (8_000_000_000, []),
    ],
)
def test_weights_of_16_bits_are_measured_against_each_tier(
    parameter_count: int, too_small: list[str]
) -> None:
    gigabytes = {"l4": 24, "l40s": 48, "h100": 80}
    tiers = {
        name: replace(a_tier(name, 1), memory_bytes=size * 10**9)
        for name, size in gigabytes.items()
    }
    spec = a_spec(tier="l4", backup_tiers=["l40s", "h100"], training={"precision": "bf16"})

    told = warnings_of(spec, resolved(parameter_count=parameter_count), tiers)

    assert [one.split()[0] for one in told if "may run out of memory" in one] == too_small


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, 23),
        ({"num_train_epochs": 2}, 46),
        ({"gradient_accumulation_steps": 8}, 3),
        ({"max_steps": 7}, 7),
    ],
)
def test_steps_are_counted_as_the_trainer_counts_them(fields: dict[str, Any], steps: int) -> None:
    data = some_rows()

    assert total_steps(a_spec(training=fields), data) == steps


def test_packed_samples_make_fewer_steps() -> None:
    data = some_rows(packed_row_count=20)

    assert total_steps(a_spec(), data) == 5


@pytest.mark.parametrize(("method", "steps"), [("dpo", 23), ("kto", 45), ("bco", 45)])
def test_pairs_are_two_rows_for_methods_that_look_at_answers_one_by_one(
    method: str, steps: int
) -> None:
    spec = a_spec(method=method)

    assert total_steps(spec, some_rows(), row_kind="preference") == steps
    assert total_steps(spec, some_rows(), row_kind="unpaired_preference") == 23


def test_a_scripted_run_has_the_steps_of_its_script() -> None:
    assert total_steps(a_spec(script={"total_steps": 70}), some_rows()) == 70


def plan_of(**fields: Any) -> Plan:
    values: dict[str, Any] = {
        "spec": a_spec(),
        "price": Money("EUR", 1_000_000),
        "times": (NOON, NOON + SECOND),
        "owner": ("acme", "default"),
        "free": 1,
    } | fields
    offer = Offer(tier="cpu", price=values["price"], memory_bytes=0, free_count=values["free"])
    return make_plan(
        values["spec"],
        resolved(),
        owner=values["owner"],
        offers=[offer],
        warnings=[],
        times=values["times"],
    )


def test_the_same_plan_has_the_same_digest_at_any_time() -> None:
    later = plan_of(times=(NOON + SECOND, NOON + 9 * SECOND), free=0)

    assert later.plan_digest == plan_of().plan_digest


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": a_spec(name="other")},
        {"price": Money("EUR", 1_000_001)},
        {"owner": ("acme", "other")},
    ],
)
def test_what_happens_or_costs_something_else_has_another_digest(fields: dict[str, Any]) -> None:
    assert plan_of(**fields).plan_digest != plan_of().plan_digest


def test_the_estimate_is_tokens_times_six_times_parameters_over_speed() -> None:
    spec = a_spec(training={"per_device_train_batch_size": 1, "max_steps": 90})
    work = Work(
        parameter_count=1_000_000,
        train_tokens=9_000,
        train_rows=90,
        validation_rows=0,
        total_steps=90,
    )

    found = estimate(spec, work, prices=[("cpu", Money("EUR", 3_600_000_000))])

    assert operations(spec, work) == 6 * 9_000 * 1_000_000
    # 54 GFLOP at 30 GFLOP/s take 1.8 s; the range is x0.5 to x3.
    assert (found.seconds_low, found.seconds_high) == (1, 6)
    assert (found.cost_low.micros, found.cost_high.micros) == (1_000_000, 6_000_000)
    assert "analytic" in found.basis


@given(
    st.integers(1, 10**12),
    st.integers(0, 10**13),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**8),
)
def test_an_estimate_is_a_range_whatever_the_numbers(
    parameters: int, tokens: int, rows: int, validation: int, steps: int
) -> None:
    work = Work(
        parameter_count=parameters,
        train_tokens=tokens,
        train_rows=rows,
        validation_rows=validation,
        total_steps=steps,
    )

    found = estimate(
        a_spec(), work, prices=[("cpu", Money("EUR", 50_000)), ("h", Money("EUR", 2_500_000))]
    )

    assert 1 <= found.seconds_low <= found.seconds_high < 2**32
    assert found.cost_low <= found.cost_high
