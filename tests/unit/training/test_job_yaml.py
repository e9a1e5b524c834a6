"""A job's file: every mistake is told with its field and its line."""

from pathlib import Path

import pytest

from lehr.training.proto import SpecInvalid
from lehr.training.spec import JobSpec
from lehr.training.yaml import read_spec, spec_of

LEAST = "name: tune\nmodel: smol\ndataset: qa\n"


def told(text: str) -> list[str]:
    """Return what is told about a file, line by line."""
    with pytest.raises(SpecInvalid) as refusal:
        spec_of(text, name="job.yaml")
    assert all(one.description.startswith("line ") for one in refusal.value.fields)
    return str(refusal.value).splitlines()


def test_the_least_job_is_three_lines() -> None:
    assert spec_of(LEAST) == JobSpec(name="tune", model="smol", dataset="qa")


def test_a_wrong_type_late_in_the_file_is_told_with_its_line() -> None:
    text = LEAST + "training:\n  eval_steps: 5\n\n  # comment\n  save_steps: many\n"

    assert told(text) == [
        "job.yaml:8: training.save_steps is 'many'; it should be a valid integer,"
        " unable to parse string as an integer"
    ]


def test_every_mistake_is_told_at_once() -> None:
    text = "name: tune\ndataset: Q A\ntraining: {eval_steps: 0}\ngpus: -1\n"

    lines = [line.partition(" ")[0] for line in told(text)]

    assert lines == ["job.yaml:1:", "job.yaml:2:", "job.yaml:4:", "job.yaml:3:"]
    assert told(text)[0] == "job.yaml:1: model is missing; set it"


def test_an_unknown_field_is_told_with_the_one_that_was_meant() -> None:
    text = LEAST + "data:\n  max_lenght: 5\n"

    assert told(text) == [
        "job.yaml:5: data.max_lenght is not a field; did you mean max_length?",
    ]


def test_a_field_that_resembles_none_is_told_with_those_there_are() -> None:
    [line] = told(LEAST + "checkpoints: {qqq: 1}\n")

    assert "job.yaml:4: checkpoints.qqq is not a field; use one of max_checkpoints" in line


def test_a_mistake_in_a_list_is_told_with_the_line_of_its_item() -> None:
    [line] = told(LEAST + "backup_tiers:\n  - l40s\n  - 5\n")

    assert line.startswith("job.yaml:6: backup_tiers.1 is 5;")


def test_a_value_that_fits_no_kind_is_told_once() -> None:
    assert told(LEAST + "adapter:\n  target_modules: 5\n") == [
        "job.yaml:5: adapter.target_modules is 5; write text or a list of texts"
    ]


def test_a_section_that_is_a_number_is_told_in_plain_words() -> None:
    assert told(LEAST + "training: 5\n") == [
        "job.yaml:4: training is 5; write its fields, each with a value"
    ]


def test_a_field_given_twice_is_refused_with_both_lines() -> None:
    assert told(LEAST + "gpus: 1\nname: other\n") == [
        "job.yaml:5: job has name twice, first in line 1; keep one of them"
    ]


@pytest.mark.parametrize(
    "text",
    ["data: {max_length: 9, max_length: 9}\n", "data:\n  max_length: 9\n  'max_length': 10\n"],
)
def test_a_field_given_twice_in_a_section_is_refused(text: str) -> None:
    [line] = told(LEAST + text)

    assert "has max_length twice" in line


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n"])
def test_an_empty_file_is_told_so(text: str) -> None:
    assert told(text) == ["job.yaml:1: job is empty; write fields, such as name: ..."]


@pytest.mark.parametrize("text", ["- name: x\n", "just words\n", "5\n"])
def test_a_file_that_is_no_set_of_fields_is_told_so(text: str) -> None:
    assert told(text) == ["job.yaml:1: job is no set of fields; write fields, such as name: ..."]


def test_a_tab_is_told_with_its_line_and_the_cure() -> None:
    [line] = told("name: tune\ntraining:\n\teval_steps: 1\n")

    assert line.startswith("job.yaml:3: ")
    assert line.endswith("indent with spaces")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model: [\n", "job.yaml:2: "),
        ("a: 'x\n", "job.yaml:2: "),
        ("a: 2024-13-45\n", "job.yaml:1: job cannot be read"),
        ("\n\na: \x01\n", "job.yaml:3: job holds a character"),
        ("a: 1\n---\nb: 2\n", "job.yaml:2: "),
        ("a: !!python/object:os.system x\n", "job.yaml:1: job could not determine"),
        ("a: " + "9" * 5000 + "\n", "job.yaml:1: job cannot be read"),
        ("? [a]\n: 1\n", "job.yaml:1: "),
        ("a: [" * 2000, "job.yaml:1: job is nested too deeply"),
        ("a: *nothing\n", "job.yaml:1: "),
    ],
)
def test_what_is_no_yaml_is_told_with_its_line(text: str, place: str) -> None:
    [line] = told(text)

    assert line.startswith(place)


def test_a_value_that_holds_itself_is_no_endless_loop() -> None:
    assert told(LEAST + "odd: &x {y: *x}\n")[0].startswith("job.yaml:4: odd is not a field")


@pytest.mark.parametrize("word", ["off", "no", "false", "null", "~", "'off'"])
def test_early_stopping_is_turned_off_by_any_usual_word(word: str) -> None:
    spec = spec_of(LEAST + f"early_stopping: {{patience: {word}}}\n")

    assert spec.early_stopping.patience is None


@pytest.mark.parametrize("word", ["2", "6", "on", "'3'"])
def test_a_patience_that_is_none_is_refused(word: str) -> None:
    [line] = told(LEAST + f"early_stopping: {{patience: {word}}}\n")

    assert line.startswith("job.yaml:4: early_stopping.patience is ")


@pytest.mark.parametrize("number", ["2e-4", "2.0e-4", "0.0002", "'2e-4'", "2E-4"])
def test_a_learning_rate_may_be_written_in_any_way(number: str) -> None:
    spec = spec_of(LEAST + f"training: {{learning_rate: {number}}}\n")

    assert spec.training.learning_rate == pytest.approx(2e-4)


@pytest.mark.parametrize("number", [".nan", ".inf", "-1", "0", "'nan'", "two"])
def test_a_learning_rate_that_is_none_is_refused(number: str) -> None:
    [line] = told(LEAST + f"training: {{learning_rate: {number}}}\n")

    assert line.startswith("job.yaml:4: training.learning_rate is ")


@pytest.mark.parametrize("field", ["gpus", "priority", "tier"])
def test_yes_is_no_number_and_no_text(field: str) -> None:
    [line] = told(LEAST + f"{field}: yes\n")

    assert line.startswith(f"job.yaml:4: {field} is True; it is not yes or no")


def test_a_switch_is_still_switched_by_yes() -> None:
    spec = spec_of(LEAST + "training: {gradient_checkpointing: yes}\n")

    assert spec.training.gradient_checkpointing


def test_a_name_with_a_nul_is_refused() -> None:
    [line] = told('name: "a\\0b"\nmodel: smol\ndataset: qa\n')

    assert line.startswith("job.yaml:1: name is 'a\\x00b'")


def test_a_byte_order_mark_is_read_over() -> None:
    assert spec_of("\ufeff" + LEAST).name == "tune"


@pytest.mark.parametrize("place", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_told_so(tmp_path: Path, place: str) -> None:
    with pytest.raises(SpecInvalid, match="cannot be read"):
        read_spec(tmp_path / place)


def test_a_file_that_is_not_utf8_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(LEAST.encode("utf-16"))

    with pytest.raises(SpecInvalid, match="cannot be read"):
        read_spec(path)
