"""Migration files: what is read from them, and which are refused."""

from pathlib import Path

import pytest

from lehr.postgres.migrate import MigrationRefused, read_migrations
from lehr.postgres.passwords import scram_verifier


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "0002_post_b.sql").write_text("-- migrate:up\nSELECT 2;", encoding="utf-8")
    (tmp_path / "0001_pre_a.sql").write_text("-- migrate:up\nSELECT 1;", encoding="utf-8")

    found = read_migrations(tmp_path)

    assert [(each.number, each.stage, each.sql) for each in found] == [
        (1, "pre", "SELECT 1;"),
        (2, "post", "SELECT 2;"),
    ]


def test_what_goes_down_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0001_pre_a.sql").write_text(
        "-- A table.\n-- migrate:up\nSELECT 1;\n-- migrate:down\nDROP TABLE a;", encoding="utf-8"
    )

    assert [each.sql for each in read_migrations(tmp_path)] == ["SELECT 1;"]


def test_a_file_says_that_it_cannot_be_in_a_transaction(tmp_path: Path) -> None:
    (tmp_path / "0001_pre_a.sql").write_text("-- migrate:up\nX;", encoding="utf-8")
    (tmp_path / "0002_pre_b.sql").write_text(
        "-- migrate:up transaction:false\nX;", encoding="utf-8"
    )

    assert [each.in_transaction for each in read_migrations(tmp_path)] == [True, False]


def test_a_missing_folder_has_no_migrations(tmp_path: Path) -> None:
    assert read_migrations(tmp_path / "nothing") == []


@pytest.mark.parametrize("name", ["1_pre_a.sql", "0001_a.sql", "0001_pre_A.sql", "a.sql"])
def test_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("-- migrate:up\nSELECT 1;", encoding="utf-8")

    with pytest.raises(MigrationRefused, match="is not named"):
        read_migrations(tmp_path)


def test_a_file_without_a_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0001_pre_a.sql").write_text("SELECT 1;", encoding="utf-8")

    with pytest.raises(MigrationRefused, match="migrate:up"):
        read_migrations(tmp_path)


def test_two_files_of_one_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "0001_pre_a.sql").write_text("-- migrate:up\nSELECT 1;", encoding="utf-8")
    (tmp_path / "0001_post_b.sql").write_text("-- migrate:up\nSELECT 1;", encoding="utf-8")

    with pytest.raises(MigrationRefused, match="one number"):
        read_migrations(tmp_path)


def test_a_verifier_does_not_hold_the_password_and_is_salted() -> None:
    first, second = scram_verifier("canary"), scram_verifier("canary")

    assert first.startswith("SCRAM-SHA-256$4096:")
    assert "canary" not in first
    assert first != second


@pytest.mark.parametrize("password", ["", "p\u00e4ss", "a\nb"])
def test_a_password_that_would_need_preparation_is_refused(password: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        scram_verifier(password)
