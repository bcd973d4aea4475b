-- +goose Up

-- One row a delivery. COLLATE "C": keys are equal when their bytes are, and no upgrade of a collation library can corrupt
-- the index that prevents a second effect. The fill factor leaves room for the answer on the row's own page (HOT updates).
CREATE TABLE IF NOT EXISTS idempotency_keys (
  source          TEXT COLLATE "C" NOT NULL,
  event_id        TEXT COLLATE "C" NOT NULL,
  payload_digest  BYTEA       NOT NULL,
  response_status SMALLINT,
  response_header JSONB,
  response_body   JSONB,
  response_raw    BYTEA,
  claimed_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
  completed_at    TIMESTAMPTZ,
  PRIMARY KEY (source, event_id)
) WITH (fillfactor = 65);

-- The sweeper's: expired rows lie together, so a few bytes a page range are enough to find them.
CREATE INDEX IF NOT EXISTS idx_idempotency_keys_claimed_at
  ON idempotency_keys USING BRIN (claimed_at) WITH (autosummarize = on);

-- Empty while all is well: claims that were committed and never completed.
CREATE INDEX IF NOT EXISTS idx_idempotency_keys_incomplete
  ON idempotency_keys (claimed_at) WHERE completed_at IS NULL;

-- +goose Down

-- The keys go with it: an event that is delivered again afterwards takes effect again.
DROP TABLE IF EXISTS idempotency_keys;
