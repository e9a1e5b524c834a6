"""Packing is refused where samples would not be kept apart."""

import pytest

from lehr.errors import InvalidArgument
from lehr.training.packable import check_packing


def test_a_model_that_keeps_samples_apart_may_pack() -> None:
    check_packing("llama")
    check_packing("llama", "eager")


@pytest.mark.parametrize(
    ("model_type", "attention"), [("mamba", "sdpa"), ("llama", "flash_attention_2"), ("", "sdpa")]
)
def test_another_is_refused_with_its_field(model_type: str, attention: str) -> None:
    with pytest.raises(InvalidArgument, match=r"set data\.packing to false") as refused:
        check_packing(model_type, attention)

    assert refused.value.reason == "PACKING_UNSUPPORTED"
    assert [one.field for one in refused.value.fields] == ["data.packing"]
