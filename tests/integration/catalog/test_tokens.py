"""Token lengths, the recommendation, and previews by the code that trains."""

import json
from pathlib import Path

import pytest

from lehr.client import AsyncClient
from lehr.errors import InvalidArgument
from tests.integration.catalog.test_datasets import chat, write
from tests.support.toy_model import PLAIN_TEMPLATE, write_toy_model


@pytest.fixture
async def model(client: AsyncClient, toy_model: Path) -> str:
    """The toy model in the catalog; context 1024."""
    return (await client.models.add(toy_model, name="toy", license="Apache-2.0")).name


async def test_the_preview_shows_exactly_what_is_trained(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    question = ("Notes:" + " lorem ipsum" * 25)[:300]
    path = write(tmp_path, chat(question, "Paris."), chat("q", "a"))
    await client.datasets.upload(path, name="paris")

    whole = (await client.datasets.preview("paris", model=model, lines=[1], max_length=512))[0]
    cut = (await client.datasets.preview("paris", model=model, lines=[1], max_length=64))[0]

    assert (whole.token_count, whole.trained_count, whole.outcome) == (311, 7, "kept")
    assert (len(cut.token_ids), cut.trained_count, cut.outcome) == (64, 7, "truncated")
    assert list(cut.token_ids) == list(whole.token_ids)[-64:]
    trained = [token for token, is_on in zip(cut.tokens, cut.trained, strict=True) if is_on]
    assert trained == [*"Paris.", "</s>"]


async def test_drop_leaves_the_row_out(client: AsyncClient, model: str, tmp_path: Path) -> None:
    path = write(tmp_path, chat("q" * 300, "Paris."), chat("q", "a"))
    await client.datasets.upload(path, name="drop")

    [sample] = await client.datasets.preview(
        "drop", model=model, lines=[1], max_length=64, overlong="drop"
    )

    assert sample.outcome == "dropped"


async def test_a_preview_of_a_line_that_is_not_there_says_so(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, chat("q", "a")), name="one-row")

    with pytest.raises(InvalidArgument, match="no row in line 7"):
        await client.datasets.preview("one-row", model=model, lines=[7])


async def test_the_recommended_length_covers_95_percent(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    # 9 tokens of marks a row: 90 rows of 200 tokens, 5 of 900, 5 of 1000.
    sizes = [200] * 90 + [900] * 5 + [1000] * 5
    rows = [chat(f"{at:03}" + "q" * (size - 9), "a") for at, size in enumerate(sizes)]
    await client.datasets.upload(write(tmp_path, *rows), name="sizes")

    answer = await client.datasets.recommend("sizes", model=model)
    chosen = await client.datasets.recommend("sizes", model=model, max_length=950)

    assert (answer.lengths.longest_tokens, answer.lengths.percentiles[95]) == (1000, 900)
    assert 900 <= answer.lengths.recommended_max_length < 1000
    assert answer.overlong_count == chosen.overlong_count == 5
    assert sum(answer.lengths.bin_counts) == 100


async def test_the_recommendation_is_capped_by_the_context_with_a_warning(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    rows = [chat(f"{at:03}" + "q" * 2000, "a") for at in range(10)]
    await client.datasets.upload(write(tmp_path, *rows), name="beyond")

    answer = await client.datasets.recommend("beyond", model=model)

    assert answer.lengths.recommended_max_length == 1024
    assert "10 of 10 rows" in answer.lengths.warnings[0]


async def test_a_model_is_listed_with_what_its_files_say(client: AsyncClient, model: str) -> None:
    found = await client.models.get(model)

    assert (found.model_type, found.context_length) == ("llama", 1024)
    assert found.parameter_count > 0
    assert [one.name for one in await client.models.list()] == [model]


async def test_a_model_that_asks_to_run_code_is_refused_and_removed(
    client: AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    for path in toy_model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((toy_model / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(InvalidArgument, match="auto_map"):
        await client.models.add(tmp_path, name="evil", license="MIT")

    assert "evil" not in [one.name for one in await client.models.list()]


async def test_a_pickle_is_refused_before_it_is_sent(
    client: AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    for path in toy_model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")

    with pytest.raises(InvalidArgument, match=r"pytorch_model\.bin"):
        await client.models.add(tmp_path, name="pickled", license="MIT")


async def test_weights_cut_short_are_refused(
    client: AsyncClient, toy_model: Path, tmp_path: Path
) -> None:
    for path in toy_model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    with pytest.raises(InvalidArgument, match="cut short"):
        await client.models.add(tmp_path, name="short", license="MIT")


async def test_a_new_revision_of_a_name_is_what_is_shown_and_counted(
    client: AsyncClient, model: str, tmp_path: Path
) -> None:
    first = await client.datasets.upload(write(tmp_path, chat("short", "a")), name="moving")
    before = await client.datasets.recommend("moving", model=model)
    await client.datasets.upload(write(tmp_path, chat("q" * 100, "new")), name="moving")

    [shown] = await client.datasets.preview("moving", model=model)
    after = await client.datasets.recommend("moving", model=model)
    [old] = await client.datasets.preview(f"moving@{first.dataset.revision[:12]}", model=model)

    assert "new" in shown.text
    assert "short" in old.text
    assert after.lengths.longest_tokens > before.lengths.longest_tokens


async def test_another_tokenizer_under_the_same_name_counts_anew(
    client: AsyncClient, model: str, toy_model: Path, tmp_path: Path
) -> None:
    await client.datasets.upload(write(tmp_path, chat("hello", "a")), name="counted")
    before = await client.datasets.recommend("counted", model=model)
    [plain] = await client.datasets.preview("counted", model=model)
    longer = write_toy_model(tmp_path / "model", template="{{ '<s>!' }}" + PLAIN_TEMPLATE)
    await client.models.add(longer, name="toy", license="Apache-2.0")

    after = await client.datasets.recommend("counted", model="toy")
    [marked] = await client.datasets.preview("counted", model="toy")

    assert after.lengths.longest_tokens == before.lengths.longest_tokens + 2
    assert marked.text == "<s>!" + plain.text
