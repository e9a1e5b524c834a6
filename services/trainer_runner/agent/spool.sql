-- What one run has said and telemetry has not confirmed; sqlite, one file a run.

-- create_facts()
-- One-row facts by name.
CREATE TABLE IF NOT EXISTS facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- create_reports()
-- Steps, evaluations and new bests, numbered from 1 without a gap.
CREATE TABLE IF NOT EXISTS reports (
    sequence integer PRIMARY KEY,
    body     text NOT NULL
);

-- create_lines()
-- Log lines, numbered from 1 without a gap.
CREATE TABLE IF NOT EXISTS lines (
    sequence integer PRIMARY KEY,
    body     text NOT NULL
);

-- facts()
-- All facts.
SELECT name, value
  FROM facts;

-- put_fact(name, value)
-- Set a fact.
INSERT INTO facts (name, value)
VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- add_report(sequence, body)
-- Keep a report.
INSERT INTO reports (sequence, body)
VALUES ($1, $2);

-- add_line(sequence, body)
-- Keep a log line.
INSERT INTO lines (sequence, body)
VALUES ($1, $2);

-- reports_after(sequence, count)
-- The next reports in order.
SELECT sequence, body
  FROM reports
 WHERE sequence > $1
 ORDER BY sequence
 LIMIT $2;

-- lines_after(sequence, count)
-- The next lines in order.
SELECT sequence, body
  FROM lines
 WHERE sequence > $1
 ORDER BY sequence
 LIMIT $2;

-- measure()
-- Bytes that are kept of each kind.
SELECT (SELECT COALESCE(SUM(LENGTH(CAST(body AS blob))), 0) FROM reports) AS report_bytes,
       (SELECT COALESCE(SUM(LENGTH(CAST(body AS blob))), 0) FROM lines) AS line_bytes;

-- trim_reports(sequence)
-- Forget reports up to this one.
DELETE FROM reports
 WHERE sequence <= $1;

-- trim_lines(sequence)
-- Forget lines up to this one.
DELETE FROM lines
 WHERE sequence <= $1;
