-- The effect that every arm's handler has. Nothing but the arm keeps it from happening twice.
CREATE TABLE orders (
  id    bigserial PRIMARY KEY,
  arm   text NOT NULL,
  event text NOT NULL
);

-- The source page's table, word for word.
CREATE TABLE webhook_idempotency (
  source           TEXT        NOT NULL,
  event_id         TEXT        NOT NULL,
  payload_digest   BYTEA       NOT NULL,
  response_status  SMALLINT,
  response_body    JSONB,
  claimed_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
  completed_at     TIMESTAMPTZ,
  PRIMARY KEY (source, event_id)
);
CREATE INDEX webhook_idempotency_claimed_idx ON webhook_idempotency USING BRIN (claimed_at);
CREATE INDEX webhook_idempotency_stuck_idx ON webhook_idempotency (claimed_at) WHERE completed_at IS NULL;

-- In the page's favour. Once the table has been analysed, the planner takes the second index for the completion, as the
-- smaller one, and has to walk through the entries that completions before it have left dead there. When autovacuum gets
-- round to that is chance, and would make figures of its own. Group "analysed" is about it.
ALTER TABLE webhook_idempotency SET (autovacuum_enabled = off);

-- A store that commits its claim before the work begins, and lets others take over a claim that has become old.
CREATE TABLE leases (
  source          text NOT NULL,
  event_id        text NOT NULL,
  payload_digest  bytea NOT NULL,
  locked_until    timestamptz NOT NULL,
  response_status smallint,
  response_body   jsonb,
  PRIMARY KEY (source, event_id)
);
