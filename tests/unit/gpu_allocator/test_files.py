"""The files that come with the allocator say what the code says."""

import re
from pathlib import Path

import pytest
import yaml

from services.gpu_allocator import storage, tiers
from services.gpu_allocator.domain.lease import MOVES

DEPLOY = tiers.default_file().parent
MIGRATION = Path(storage.__file__).parent / "migrations" / "0001_pre_allocator.sql"


def test_the_moves_in_the_schema_are_the_moves_in_the_code() -> None:
    (table,) = re.findall(r"INSERT INTO lease_moves.*?;", MIGRATION.read_text(), re.S)

    in_schema = set(re.findall(r"\('(\w+)', '(\w+)'\)", table))

    assert in_schema == {(have, want) for have, wants in MOVES.items() for want in wants}


def test_every_tier_has_an_example_price_and_every_price_a_tier() -> None:
    rates = yaml.safe_load((DEPLOY / "rates.yaml").read_text())

    known = [tier.tier for tier in tiers.read(tiers.default_file())]

    assert list(rates["per_gpu_hour"]) == known
    assert all(re.fullmatch(r"\d+\.\d{1,6}", price) for price in rates["per_gpu_hour"].values())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tiers: {}", "at least 1 item"),
        ("tiers: {H100: {title: a, memory_bytes: 1, source: b}}", "H100"),
        ("tiers: {h: {title: a, memory_bytes: -1, source: b}}", "memory_bytes"),
        ("tiers: {h: {title: a, memory_bytes: 1, source: b, price: 3}}", "price"),
        ("tiers: [", "YAML|expected|flow"),
    ],
)
def test_a_wrong_file_of_tiers_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "tiers.yaml"
    file.write_text(text)

    with pytest.raises(tiers.TiersRefused, match=f"(?s){re.escape(str(file))}.*({told})"):
        tiers.read(file)
