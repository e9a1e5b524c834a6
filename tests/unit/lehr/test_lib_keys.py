"""Object keys that every S3 server takes as they stand."""

import pytest

from lehr.errors import InvalidArgument
from lehr.objects import check_key


@pytest.mark.parametrize("key", ["a", "models/t1/a.b", "checkpoints/t1/j/c/f 1", "datasets/\u00e9"])
def test_a_key_is_taken_as_it_is(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/../b", "..", "./a", "a\nb", "a\\b", "a\x00", "x" * 1025]
)
def test_a_key_that_servers_read_differently_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_key(key)

    assert caught.value.reason == "OBJECT_KEY_MALFORMED"
