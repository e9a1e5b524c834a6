-- add_event(event_id, stream, subject, type, subject_id, body)
-- Write an event beside the change that it tells of, and wake the relay at commit.
WITH added AS (
    INSERT INTO outbox (event_id, stream, subject, type, subject_id, body)
    VALUES ($1, $2, $3, $4, $5, $6)
    RETURNING outbox_id
)
SELECT pg_notify('outbox_' || current_schema(), '')
  FROM added;

-- try_lead()
-- Become the one relay of this schema, for as long as the connection lives.
SELECT pg_try_advisory_lock(hashtextextended('lehr.relay.' || current_schema(), 0));

-- outbox_channel()
-- The name on which the relay listens.
SELECT 'outbox_' || current_schema();

-- events_waiting(limit)
-- The oldest events that wait to be published, in the order in which they were written.
SELECT outbox_id, event_id, stream, subject, type, subject_id, body
  FROM outbox
 WHERE sent_time IS NULL
 ORDER BY outbox_id
 LIMIT $1;

-- mark_sent(outbox_ids)
-- Remember that the stream has confirmed these events.
UPDATE outbox
   SET sent_time = clock_timestamp()
 WHERE outbox_id = ANY ($1::bigint[]);

-- count_waiting()
-- How many events wait, and the age in seconds of the oldest.
SELECT count(*) AS waiting_count,
       coalesce(extract(epoch FROM clock_timestamp() - min(create_time)), 0)::double precision
           AS oldest_seconds
  FROM outbox
 WHERE sent_time IS NULL;

-- forget_sent(kept)
-- Drop events that were sent longer ago than they are kept.
DELETE FROM outbox
 WHERE sent_time < clock_timestamp() - $1::interval;

-- forget_taken(kept)
-- Drop inbox rows that no stream could deliver again.
DELETE FROM inbox
 WHERE create_time < clock_timestamp() - $1::interval;

-- take_event(consumer, event_id)
-- Remember that a consumer has this event; no row means that it had it before.
INSERT INTO inbox (consumer, event_id)
VALUES ($1, $2)
ON CONFLICT (consumer, event_id) DO NOTHING
RETURNING event_id;
