"""Licences: which are free to use, and which somebody must answer for."""

import pytest

from services.catalog.domain.errors import LicenseNotAcknowledged, UploadRefused
from services.catalog.domain.licenses import Terms, concern


@pytest.mark.parametrize(
    "license_id",
    ["Apache-2.0", "mit", "MIT", "cc-by-4.0", "CC-BY-SA-4.0", "own", "odc-by", " mit "],
)
def test_a_free_licence_concerns_nobody(license_id: str) -> None:
    assert concern(license_id) is None


@pytest.mark.parametrize(
    ("license_id", "words"),
    [
        ("", "not known"),
        ("unknown", "not known"),
        ("cc-by-nc-4.0", "commercial"),
        ("CC-BY-NC-SA-3.0", "commercial"),
        ("cc-by-nc-nd-4.0", "commercial"),
        ("mistral research licence", "commercial"),
        ("non-commercial", "commercial"),
        ("apple_noncommercial", "commercial"),
        ("other", "terms of its own"),
        ("llama2", "terms of its own"),
        ("llama3.1", "terms of its own"),
        ("Llama 3 Community License", "terms of its own"),
        ("gemma", "terms of its own"),
        ("openrail++", "terms of its own"),
        ("cc-by-nd-4.0", "terms of its own"),
        ("mitt", "none that the platform knows"),
        ("see the file LICENSE", "none that the platform knows"),
    ],
)
def test_any_other_licence_is_told_with_what_it_is(license_id: str, words: str) -> None:
    assert words in (concern(license_id) or "")


def test_who_answers_is_recorded_only_where_somebody_must() -> None:
    free = Terms(license="MIT", acknowledges=True)
    bound = Terms(license="llama3", acknowledges=True)

    assert free.recorded(empty_means="own", principal="key_1") == ("MIT", "")
    assert bound.recorded(empty_means="own", principal="key_1") == ("llama3", "key_1")


def test_what_nobody_answers_for_is_refused_with_what_to_do() -> None:
    with pytest.raises(LicenseNotAcknowledged, match="--acknowledge-license") as refusal:
        Terms(license="cc-by-nc-4.0").recorded(empty_means="own", principal="key_1")

    assert refusal.value.facts == {"license": "cc-by-nc-4.0"}


def test_an_empty_licence_means_what_the_noun_says() -> None:
    assert Terms().recorded(empty_means="own", principal="k") == ("own", "")
    with pytest.raises(LicenseNotAcknowledged):
        Terms().recorded(empty_means="unknown", principal="k")


@pytest.mark.parametrize("text", ["MIT\0", "x" * 201])
def test_a_licence_is_short_printable_text(text: str) -> None:
    with pytest.raises(UploadRefused, match="license"):
        Terms(license=text).recorded(empty_means="own", principal="k")
