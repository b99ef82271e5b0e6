-- Fences of all keys. It begins at the clock, so that a database that was made anew goes on above
-- what was given before.
CREATE SEQUENCE latchwork_lock_fence AS bigint;
SELECT setval('latchwork_lock_fence', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- Whoever holds a key or waits for it. Times are microseconds of the server's clock.
CREATE TABLE latchwork_lock (
    key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,         -- a hash of the token, which itself is a secret
    shared boolean NOT NULL,
    owner text,
    note text,
    process text NOT NULL,                -- host:pid, for people
    client text COLLATE "C" NOT NULL,     -- whom to tell: see latchwork_lock_client
    ttl_us bigint NOT NULL,
    since_us bigint NOT NULL,
    place bigint,                         -- in the queue; of waiters only
    until_us bigint,                      -- when it gives up waiting; null: never
    fence bigint,                         -- of holders only
    previous bigint,
    expires_us bigint,
    claimed boolean NOT NULL,             -- false: waits, or was next and has not answered yet
    PRIMARY KEY (key, id)
);
CREATE INDEX latchwork_lock_waiting ON latchwork_lock (client) WHERE NOT claimed;

-- Processes that wait for something, and until when they count as alive.
CREATE TABLE latchwork_lock_client (
    client text COLLATE "C" PRIMARY KEY,
    alive_us bigint NOT NULL
);

-- The way of nearly every lease, in one message: a key that nobody uses is taken, one that nobody
-- waits for is given back. Null: it is more than that, and the rules must decide. Each statement
-- inside sees what was committed before it, which only holds under READ COMMITTED.
CREATE FUNCTION latchwork_lock_take(turn bigint, k text, i text, is_shared boolean, o text, n text,
        p text, c text, ttl bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    drawn bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(turn);
    IF current_setting('transaction_isolation') <> 'read committed'
            OR EXISTS (SELECT 1 FROM latchwork_lock WHERE key = k) THEN
        RETURN NULL;
    END IF;
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    drawn := nextval('latchwork_lock_fence');
    INSERT INTO latchwork_lock
        (key, id, shared, owner, note, process, client, ttl_us, since_us, fence, expires_us, claimed)
        VALUES (k, i, is_shared, o, n, p, c, ttl, now_us, drawn, now_us + ttl, true);
    RETURN drawn;
END $$;

-- A release that a crash takes back costs time, and no promise: it need not wait for the disk.
CREATE FUNCTION latchwork_lock_drop(turn bigint, k text, i text)
        RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    was_held boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(turn);
    IF current_setting('transaction_isolation') <> 'read committed'
            OR EXISTS (SELECT 1 FROM latchwork_lock WHERE key = k AND id <> i) THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM latchwork_lock WHERE key = k AND id = i
        RETURNING fence IS NOT NULL
            AND expires_us > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        INTO was_held;
    RETURN coalesce(was_held, false);
END $$;

-- The newest fence that was seen with a write (see PostgresFenceGate).
CREATE TABLE IF NOT EXISTS latchwork_fence_gate (
    key text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
);
