-- migrate:up
-- Names are unqualified on purpose: this runs once in the schema of each service.
SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- Events that this service says; written in the transaction of the change that they tell of.
CREATE TABLE outbox (
    outbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL UNIQUE,
    stream text NOT NULL,
    subject text NOT NULL,
    type text NOT NULL,
    subject_id text NOT NULL,
    body text NOT NULL,
    create_time timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_time timestamptz
);

-- The relay reads only what waits; the table keeps a week of what was sent.
CREATE INDEX outbox_waiting ON outbox (outbox_id) WHERE sent_time IS NULL;
CREATE INDEX outbox_sent ON outbox (sent_time) WHERE sent_time IS NOT NULL;
ALTER TABLE outbox SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500
);

-- Events that this service has taken in; written in the transaction of their effect.
CREATE TABLE inbox (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    create_time timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX inbox_create_time ON inbox (create_time);
