"""The file of prices."""

from decimal import Decimal
from pathlib import Path

import pytest

from services.billing import rates
from services.billing.domain.errors import RatesRefused


def test_the_file_of_the_installation_is_good() -> None:
    found = rates.read(rates.default_file())

    assert found.currency == "EUR"
    assert found.prices["h100-80gb"] == Decimal("2.80") * 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "currency: EUR\nper_gpu_hour: {cpu: 0.05}",
        'currency: EUR\nper_gpu_hour: {cpu: "0.0000001"}',
        'currency: EUR\nper_gpu_hour: {cpu: "-1"}',
        'currency: EUR\nper_gpu_hour: {cpu: "1000001"}',
        'currency: EUR\nper_gpu_hour: {cpu: "free"}',
        'currency: euro\nper_gpu_hour: {cpu: "1"}',
        'currency: EUR\nper_gpu_hour: {"": "1"}',
        "currency: EUR\nper_gpu_hour: {}",
        "currency: EUR",
        "[",
    ],
)
def test_a_price_that_is_not_exact_text_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(RatesRefused):
        rates.read(file)
