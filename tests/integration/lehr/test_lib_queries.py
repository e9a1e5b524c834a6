"""Named statements: found by name, and refused when they are not described as agreed."""

from pathlib import Path

import pytest

from lehr.postgres import Queries

GOOD = """-- Statements of the scheduler.

-- save_job(job_id, state)
-- Store a job; a purpose
-- may go on.
UPDATE jobs
   SET state = $2 -- lower case
 WHERE job_id = $1;

-- insert_run(run_id,
--            job_id)
-- Begin a run.
INSERT INTO runs (run_id, job_id)
VALUES ($1, $2);

-- jobs_waiting()
-- lower(jobs) in order.
SELECT job_id
  FROM jobs;
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queries.sql"


def test_a_statement_is_found_by_name_without_its_semicolon(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")

    queries = Queries.load(file)

    assert list(queries) == ["save_job", "insert_run", "jobs_waiting"]
    assert queries["jobs_waiting"] == "SELECT job_id\n  FROM jobs"


def test_a_statement_says_what_it_is_for_and_what_it_takes(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")

    described = Queries.load(file).described

    assert described["save_job"].purpose == "Store a job; a purpose may go on."
    assert described["insert_run"].parameters == ("run_id", "job_id")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("SELECT 1;", r":1: a statement before"),
        ("-- a()\nSELECT 1;", r":1: a has no line of purpose"),
        ("-- a()\n-- Why.\nSELECT 1", r":1: a does not end with a semicolon"),
        ("-- a(x)\n-- Why.\nSELECT 1;", r":1: a names 1 parameters and uses \[\]"),
        ("-- a(x)\n-- Why.\nSELECT $1, $2;", r":1: a names 1 parameters and uses \[1, 2\]"),
        ("-- a()\n-- Why.\nSELECT 1;\n\n-- a()\n-- Why.\nSELECT 2;", r":5: a is defined twice"),
        ("-- a() -> row\n-- Why.\nSELECT 1;", r":1: .* is not a name line"),
    ],
)
def test_a_statement_that_is_not_described_is_refused_with_its_line(
    file: Path, content: str, complaint: str
) -> None:
    file.write_text(content, encoding="utf-8")

    with pytest.raises(ValueError, match=complaint):
        Queries.load(file)
