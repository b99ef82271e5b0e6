//! The tables, and every statement on them but the gate's.

use latchwork_sql::Migration;

/// The name under which the migrations are recorded.
pub(super) const LAYER: &str = "lock";

/// The steps, oldest first. Released ones never change.
pub(super) const MIGRATIONS: [Migration; 4] = [
    Migration { version: 1, name: "leases, waiters and fences", sql: FIRST },
    Migration { version: 2, name: "many requests in one message", sql: SECOND },
    Migration { version: 3, name: "one request, quickly", sql: THIRD },
    Migration { version: 4, name: "one request, on a busy key", sql: FOURTH },
];

const FIRST: &str = r#"
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
"#;

const SECOND: &str = r#"
-- What a process asks for goes in one message, which is one transaction. Each member is answered
-- for itself; an answer of nulls: it is more than that, and the rules must decide. The keys come in
-- the order of their turns, so that no two messages can wait for each other; and whoever is
-- stopped while it changes one of them holds up the rest for a moment only.
--
-- Asks for leases. A key that nobody uses is taken, a key that was handed on is claimed, and who must
-- wait is put into the queue. `waits`: microseconds, -1 for ever, null not at all. Answers the fence
-- and the one before; for the queue the microseconds until something runs out, -1 if another waiter
-- looks after that; for who would not wait a holder, and when that was seen.
CREATE FUNCTION latchwork_lock_ask(c text, p text, turns bigint[], ks text[], ids text[],
        modes boolean[], owners text[], notes text[], ttls bigint[], waits bigint[])
        RETURNS TABLE (got bigint, before bigint, was_next boolean, due bigint, holder text,
            seen_us bigint)
        LANGUAGE plpgsql AS $$
DECLARE
    decides boolean := current_setting('transaction_isolation') = 'read committed';
    durable boolean := false;
    now_us bigint;
    seen record;
    said text;
BEGIN
    FOR n IN 1 .. cardinality(ks) LOOP
        got := NULL; before := NULL; was_next := NULL; due := NULL; holder := NULL; seen_us := NULL;
        IF decides AND NOT pg_try_advisory_xact_lock(turns[n]) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turns[n]);
        END IF;
        now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        INSERT INTO latchwork_lock AS t (key, id, shared, owner, note, process, client, ttl_us,
                since_us, fence, expires_us, claimed)
            SELECT ks[n], ids[n], modes[n], owners[n], notes[n], p, c, ttls[n], now_us,
                nextval('latchwork_lock_fence'), now_us + ttls[n], true
            WHERE decides AND NOT EXISTS (SELECT 1 FROM latchwork_lock l WHERE l.key = ks[n])
            RETURNING t.fence INTO got;
        IF got IS NOT NULL THEN
            was_next := false;
            durable := true;
        ELSIF decides THEN
            -- A bitmap would be made of every version of a busy key's rows, again and again.
            said := set_config('enable_bitmapscan', 'off', true);
            SELECT bool_or(l.id = ids[n]) AS known,
                bool_or(l.fence IS NOT NULL AND (NOT l.shared OR NOT modes[n])) AS excluded,
                bool_or(l.fence IS NOT NULL AND l.expires_us <= now_us) AS ended,
                min(l.expires_us) FILTER (WHERE l.fence IS NOT NULL) AS ends, max(l.place) AS place
                INTO seen FROM latchwork_lock l WHERE l.key = ks[n];
            IF seen.known THEN
                UPDATE latchwork_lock l SET claimed = true, expires_us = now_us + l.ttl_us
                    WHERE l.key = ks[n] AND l.id = ids[n]
                        AND l.fence IS NOT NULL AND NOT l.claimed AND l.expires_us > now_us
                    RETURNING l.fence, l.previous, true INTO got, before, was_next;
                durable := durable OR got IS NOT NULL;
            ELSIF seen.ended OR NOT seen.excluded OR owners[n] IS NOT NULL THEN
                NULL; -- somebody may be let in, or take over
            ELSIF waits[n] IS NULL THEN
                seen_us := now_us;
                SELECT to_jsonb(l)::text INTO holder FROM latchwork_lock l
                    WHERE l.key = ks[n] AND l.fence IS NOT NULL ORDER BY l.fence LIMIT 1;
            ELSIF EXISTS (SELECT 1 FROM latchwork_lock_client a
                    WHERE a.client = c AND a.alive_us > now_us + 1000000) THEN
                due := CASE WHEN seen.place IS NULL THEN seen.ends - now_us ELSE -1 END;
                INSERT INTO latchwork_lock (key, id, shared, owner, note, process, client, ttl_us,
                        since_us, place, until_us, claimed)
                    VALUES (ks[n], ids[n], modes[n], NULL, notes[n], p, c, ttls[n], now_us,
                        coalesce(seen.place, 0) + 1,
                        CASE WHEN waits[n] >= 0 THEN now_us + waits[n] END, false);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- Who lost its place in a crash asks again; a grant must outlive it.
    IF NOT durable THEN
        said := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;

-- Gives leases back, and hands the key on where one writer follows another. The next one of the
-- process that gives back has its lease at once, since that process will see to it; the next one
-- of another process has a reservation, which it must claim. Answers whether it was held, whom it
-- was handed to and with which fence, who is first in line now, and when something runs out.
CREATE FUNCTION latchwork_lock_give(c text, turns bigint[], ks text[], ids text[])
        RETURNS TABLE (was_held boolean, next_id text, next_client text, next_fence bigint,
            old_fence bigint, first_id text, first_client text, due bigint)
        LANGUAGE plpgsql AS $$
DECLARE
    decides boolean := current_setting('transaction_isolation') = 'read committed';
    durable boolean := false;
    now_us bigint;
    lasts bigint;
    seen record;
    waiting record;
    said text;
BEGIN
    FOR n IN 1 .. cardinality(ks) LOOP
        was_held := NULL; next_id := NULL; next_client := NULL; next_fence := NULL;
        old_fence := NULL; first_id := NULL; first_client := NULL; due := NULL;
        IF decides AND NOT pg_try_advisory_xact_lock(turns[n]) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turns[n]);
        END IF;
        now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        DELETE FROM latchwork_lock l WHERE decides AND l.key = ks[n] AND l.id = ids[n]
                AND NOT EXISTS
                    (SELECT 1 FROM latchwork_lock o WHERE o.key = ks[n] AND o.id <> ids[n])
            RETURNING l.fence IS NOT NULL AND l.expires_us > now_us INTO was_held;
        IF was_held IS NULL AND decides THEN
            -- A bitmap would be made of every version of a busy key's rows, again and again.
            said := set_config('enable_bitmapscan', 'off', true);
            SELECT count(*) AS used, bool_or(l.id <> ids[n] AND l.fence IS NOT NULL) AS shares,
                bool_or(l.id = ids[n] AND l.fence IS NOT NULL AND l.expires_us > now_us) AS holds,
                max(l.fence) AS fence
                INTO seen FROM latchwork_lock l WHERE l.key = ks[n];
            IF seen.used = 0 THEN
                was_held := false;
            ELSIF seen.holds AND NOT seen.shares THEN
                FOR waiting IN
                    SELECT l.id, l.client, l.shared, l.ttl_us
                    FROM latchwork_lock l JOIN latchwork_lock_client a ON a.client = l.client
                    WHERE l.key = ks[n] AND l.fence IS NULL AND a.alive_us > now_us
                        AND (l.until_us IS NULL OR l.until_us > now_us)
                    ORDER BY l.place LIMIT 2
                LOOP
                    IF next_id IS NOT NULL THEN
                        first_id := waiting.id;
                        first_client := waiting.client;
                        due := lasts;
                    ELSE
                        EXIT WHEN waiting.shared; -- others may be let in with it
                        was_held := true;
                        durable := true;
                        next_id := waiting.id;
                        next_client := waiting.client;
                        old_fence := seen.fence;
                        next_fence := greatest(nextval('latchwork_lock_fence'), old_fence + 1);
                        lasts := CASE WHEN next_client = c THEN waiting.ttl_us
                            ELSE least(waiting.ttl_us, 2000000) END;
                        DELETE FROM latchwork_lock l WHERE l.key = ks[n] AND l.id = ids[n];
                        UPDATE latchwork_lock l SET fence = next_fence, previous = old_fence,
                                since_us = now_us, expires_us = now_us + lasts,
                                claimed = (next_client = c), place = NULL, until_us = NULL
                            WHERE l.key = ks[n] AND l.id = next_id;
                    END IF;
                END LOOP;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- A release that a crash takes back costs time, and no promise; a grant must outlive it.
    IF NOT durable THEN
        said := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;
"#;

const THIRD: &str = r#"
-- The queue of a key in its order: the two first are all that a release looks at, however many
-- wait. A key that nobody waits for is not in it.
CREATE INDEX latchwork_lock_queue ON latchwork_lock (key, place) WHERE fence IS NULL;

-- As before, but for what is looked at.
CREATE OR REPLACE FUNCTION latchwork_lock_give(c text, turns bigint[], ks text[], ids text[])
        RETURNS TABLE (was_held boolean, next_id text, next_client text, next_fence bigint,
            old_fence bigint, first_id text, first_client text, due bigint)
        LANGUAGE plpgsql AS $$
DECLARE
    decides boolean := current_setting('transaction_isolation') = 'read committed';
    durable boolean := false;
    now_us bigint;
    lasts bigint;
    seen record;
    waiting record;
    said text;
BEGIN
    FOR n IN 1 .. cardinality(ks) LOOP
        was_held := NULL; next_id := NULL; next_client := NULL; next_fence := NULL;
        old_fence := NULL; first_id := NULL; first_client := NULL; due := NULL;
        IF decides AND NOT pg_try_advisory_xact_lock(turns[n]) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turns[n]);
        END IF;
        now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        DELETE FROM latchwork_lock l WHERE decides AND l.key = ks[n] AND l.id = ids[n]
                AND NOT EXISTS
                    (SELECT 1 FROM latchwork_lock o WHERE o.key = ks[n] AND o.id <> ids[n])
            RETURNING l.fence IS NOT NULL AND l.expires_us > now_us INTO was_held;
        IF was_held IS NULL AND decides THEN
            -- A bitmap would be made of every version of a busy key's rows, again and again.
            said := set_config('enable_bitmapscan', 'off', true);
            said := set_config('enable_seqscan', 'off', true);
            SELECT l.fence, l.shared, l.fence IS NOT NULL AND l.expires_us > now_us AS holds
                INTO seen FROM latchwork_lock l WHERE l.key = ks[n] AND l.id = ids[n];
            IF NOT FOUND THEN
                IF NOT EXISTS (SELECT 1 FROM latchwork_lock l WHERE l.key = ks[n]) THEN
                    was_held := false;
                END IF;
            ELSIF seen.holds AND NOT seen.shared THEN -- then nobody else holds it
                FOR waiting IN
                    SELECT l.id, l.client, l.shared, l.ttl_us
                    FROM latchwork_lock l
                    WHERE l.key = ks[n] AND l.fence IS NULL
                        AND (SELECT a.alive_us FROM latchwork_lock_client a
                            WHERE a.client = l.client) > now_us
                        AND (l.until_us IS NULL OR l.until_us > now_us)
                    ORDER BY l.place LIMIT 2
                LOOP
                    IF next_id IS NOT NULL THEN
                        first_id := waiting.id;
                        first_client := waiting.client;
                        due := lasts;
                    ELSE
                        EXIT WHEN waiting.shared; -- others may be let in with it
                        was_held := true;
                        durable := true;
                        next_id := waiting.id;
                        next_client := waiting.client;
                        old_fence := seen.fence;
                        next_fence := greatest(nextval('latchwork_lock_fence'), old_fence + 1);
                        lasts := CASE WHEN next_client = c THEN waiting.ttl_us
                            ELSE least(waiting.ttl_us, 2000000) END;
                        DELETE FROM latchwork_lock l WHERE l.key = ks[n] AND l.id = ids[n];
                        UPDATE latchwork_lock l SET fence = next_fence, previous = old_fence,
                                since_us = now_us, expires_us = now_us + lasts,
                                claimed = (next_client = c), place = NULL, until_us = NULL
                            WHERE l.key = ks[n] AND l.id = next_id;
                    END IF;
                END LOOP;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- A release that a crash takes back costs time, and no promise; a grant must outlive it.
    IF NOT durable THEN
        said := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;

-- One request, with as little as can be: each expression and each column of an answer costs
-- something in every transaction. A number: the fence of a key that nobody used. Else the answer of
-- latchwork_lock_ask as JSON. The rows are read in a statement of its own, after the lock.
CREATE FUNCTION latchwork_lock_ask_one(c text, p text, turn bigint, k text, i text,
        is_shared boolean, o text, n text, ttl bigint, wait bigint)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    drawn bigint;
BEGIN
    IF pg_try_advisory_xact_lock(turn)
            AND current_setting('transaction_isolation') = 'read committed' THEN
        IF NOT EXISTS (SELECT 1 FROM latchwork_lock l WHERE l.key = k) THEN
            now_us := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
            drawn := nextval('latchwork_lock_fence');
            INSERT INTO latchwork_lock (key, id, shared, owner, note, process, client, ttl_us,
                    since_us, fence, expires_us, claimed)
                VALUES (k, i, is_shared, o, n, p, c, ttl, now_us, drawn, now_us + ttl, true);
            RETURN drawn;
        END IF;
    END IF;
    RETURN (SELECT to_jsonb(a)::text FROM latchwork_lock_ask(c, p, ARRAY[turn], ARRAY[k], ARRAY[i],
        ARRAY[is_shared], ARRAY[o], ARRAY[n], ARRAY[ttl], ARRAY[wait]) a);
END $$;

-- `held` or `over`: nobody else used the key, and it is free now. Else the answer of
-- latchwork_lock_give as JSON.
CREATE FUNCTION latchwork_lock_give_one(c text, turn bigint, k text, i text)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    was text;
    said text;
BEGIN
    IF pg_try_advisory_xact_lock(turn)
            AND current_setting('transaction_isolation') = 'read committed' THEN
        DELETE FROM latchwork_lock l WHERE l.key = k AND l.id = i AND NOT EXISTS
                (SELECT 1 FROM latchwork_lock o WHERE o.key = k AND o.id <> i)
            RETURNING CASE WHEN l.fence IS NOT NULL AND l.expires_us
                > (date_part('epoch', clock_timestamp()) * 1000000)::bigint
                THEN 'held' ELSE 'over' END INTO was;
        IF FOUND THEN
            IF current_setting('synchronous_commit') <> 'off' THEN
                said := set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN was;
        END IF;
    END IF;
    RETURN (SELECT to_jsonb(g)::text
        FROM latchwork_lock_give(c, ARRAY[turn], ARRAY[k], ARRAY[i]) g);
END $$;

-- The same for a key of which is known that others wait: from one writer to the next. Names and
-- numbers need no quoting in JSON.
CREATE FUNCTION latchwork_lock_hand_on(c text, turn bigint, k text, i text)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    lasts bigint;
    old bigint;
    drawn bigint;
    answer text;
    waiting record;
BEGIN
    IF pg_try_advisory_xact_lock(turn)
            AND current_setting('transaction_isolation') = 'read committed' THEN
        now_us := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
        FOR waiting IN
            SELECT l.id, l.client, l.shared, l.ttl_us
            FROM latchwork_lock l
            WHERE l.key = k AND l.fence IS NULL
                AND (SELECT a.alive_us FROM latchwork_lock_client a
                    WHERE a.client = l.client) > now_us
                AND (l.until_us IS NULL OR l.until_us > now_us)
            ORDER BY l.place LIMIT 2
        LOOP
            IF answer IS NOT NULL THEN
                RETURN answer || format(',"first_id":"%s","first_client":"%s","due":%s}',
                    waiting.id, waiting.client, lasts);
            END IF;
            EXIT WHEN waiting.shared; -- others may be let in with it
            -- Alone, and so the only one who holds it.
            DELETE FROM latchwork_lock l WHERE l.key = k AND l.id = i AND l.fence IS NOT NULL
                AND NOT l.shared AND l.expires_us > now_us RETURNING l.fence INTO old;
            EXIT WHEN old IS NULL;
            lasts := CASE WHEN waiting.client = c THEN waiting.ttl_us
                ELSE least(waiting.ttl_us, 2000000) END;
            UPDATE latchwork_lock l SET fence = greatest(nextval('latchwork_lock_fence'), old + 1),
                    previous = old, since_us = now_us, expires_us = now_us + lasts,
                    claimed = (waiting.client = c), place = NULL, until_us = NULL
                WHERE l.key = k AND l.id = waiting.id RETURNING l.fence INTO drawn;
            answer := format('{"was_held":true,"next_id":"%s","next_client":"%s","next_fence":%s,'
                '"old_fence":%s', waiting.id, waiting.client, drawn, old);
        END LOOP;
        IF answer IS NOT NULL THEN
            RETURN answer || '}';
        END IF;
    END IF;
    RETURN (SELECT to_jsonb(g)::text
        FROM latchwork_lock_give(c, ARRAY[turn], ARRAY[k], ARRAY[i]) g);
END $$;
"#;

const FOURTH: &str = r#"
-- One request, as before, with less work. Whoever comes while the key is being changed waits for
-- that here, and goes on with what follows instead of asking in the general way; a queue is joined
-- with one statement. A fence that is drawn in vain costs less than a look before.
CREATE OR REPLACE FUNCTION latchwork_lock_ask_one(c text, p text, turn bigint, k text, i text,
        is_shared boolean, o text, n text, ttl bigint, wait bigint)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    drawn bigint;
    stands bigint;
    said text;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        IF NOT pg_try_advisory_xact_lock(turn) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turn);
        END IF;
        now_us := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
        drawn := nextval('latchwork_lock_fence');
        INSERT INTO latchwork_lock (key, id, shared, owner, note, process, client, ttl_us,
                since_us, fence, expires_us, claimed)
            SELECT k, i, is_shared, o, n, p, c, ttl, now_us, drawn, now_us + ttl, true
            WHERE NOT EXISTS (SELECT 1 FROM latchwork_lock l WHERE l.key = k);
        IF FOUND THEN
            RETURN drawn;
        END IF;
        IF wait IS NOT NULL AND o IS NULL THEN
            -- A bitmap would be made of every version of a busy key's rows, again and again.
            IF current_setting('enable_bitmapscan') <> 'off' THEN
                said := set_config('enable_bitmapscan', 'off', true);
            END IF;
            -- The same conditions as in latchwork_lock_ask.
            INSERT INTO latchwork_lock AS t (key, id, shared, note, process, client, ttl_us,
                    since_us, place, until_us, claimed)
                SELECT k, i, is_shared, n, p, c, ttl, now_us, coalesce(seen.place, 0) + 1,
                    CASE WHEN wait >= 0 THEN now_us + wait END, false
                FROM (SELECT bool_or(l.id = i) AS known,
                        bool_or(l.fence IS NOT NULL AND (NOT l.shared OR NOT is_shared)) AS excluded,
                        bool_or(l.fence IS NOT NULL AND l.expires_us <= now_us) AS ended,
                        max(l.place) AS place
                    FROM latchwork_lock l WHERE l.key = k) seen
                WHERE NOT seen.known AND seen.excluded AND NOT seen.ended
                    AND EXISTS (SELECT 1 FROM latchwork_lock_client a
                        WHERE a.client = c AND a.alive_us > now_us + 1000000)
                RETURNING t.place INTO stands;
            IF FOUND THEN
                IF current_setting('synchronous_commit') <> 'off' THEN
                    said := set_config('synchronous_commit', 'off', true);
                END IF;
                IF stands > 1 THEN
                    RETURN '{"due":-1}';
                END IF;
                RETURN (SELECT format('{"due":%s}', min(l.expires_us) - now_us)
                    FROM latchwork_lock l WHERE l.key = k AND l.fence IS NOT NULL);
            END IF;
        END IF;
    END IF;
    RETURN (SELECT to_jsonb(a)::text FROM latchwork_lock_ask(c, p, ARRAY[turn], ARRAY[k], ARRAY[i],
        ARRAY[is_shared], ARRAY[o], ARRAY[n], ARRAY[ttl], ARRAY[wait]) a);
END $$;

-- The same for one that was told of its turn: it claims what was handed to it.
CREATE FUNCTION latchwork_lock_claim_one(c text, p text, turn bigint, k text, i text,
        is_shared boolean, o text, n text, ttl bigint, wait bigint)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    said text;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        IF NOT pg_try_advisory_xact_lock(turn) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turn);
        END IF;
        now_us := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
        UPDATE latchwork_lock l SET claimed = true, expires_us = now_us + l.ttl_us
            WHERE l.key = k AND l.id = i
                AND l.fence IS NOT NULL AND NOT l.claimed AND l.expires_us > now_us
            RETURNING format('{"got":%s,"before":%s,"was_next":true}', l.fence,
                coalesce(l.previous::text, 'null')) INTO said;
        IF FOUND THEN
            RETURN said;
        END IF;
    END IF;
    RETURN latchwork_lock_ask_one(c, p, turn, k, i, is_shared, o, n, ttl, wait);
END $$;

CREATE OR REPLACE FUNCTION latchwork_lock_give_one(c text, turn bigint, k text, i text)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    was text;
    said text;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        IF NOT pg_try_advisory_xact_lock(turn) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turn);
        END IF;
        DELETE FROM latchwork_lock l WHERE l.key = k AND l.id = i AND NOT EXISTS
                (SELECT 1 FROM latchwork_lock o WHERE o.key = k AND o.id <> i)
            RETURNING CASE WHEN l.fence IS NOT NULL AND l.expires_us
                > (date_part('epoch', clock_timestamp()) * 1000000)::bigint
                THEN 'held' ELSE 'over' END INTO was;
        IF FOUND THEN
            IF current_setting('synchronous_commit') <> 'off' THEN
                said := set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN was;
        END IF;
    END IF;
    RETURN latchwork_lock_hand_on(c, turn, k, i);
END $$;

CREATE OR REPLACE FUNCTION latchwork_lock_hand_on(c text, turn bigint, k text, i text)
        RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    lasts bigint;
    old bigint;
    drawn bigint;
    answer text;
    said text;
    waiting record;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        IF NOT pg_try_advisory_xact_lock(turn) THEN
            said := set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(turn);
        END IF;
        now_us := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
        FOR waiting IN
            SELECT l.id, l.client, l.shared, l.ttl_us
            FROM latchwork_lock l
            WHERE l.key = k AND l.fence IS NULL
                AND (SELECT a.alive_us FROM latchwork_lock_client a
                    WHERE a.client = l.client) > now_us
                AND (l.until_us IS NULL OR l.until_us > now_us)
            ORDER BY l.place LIMIT 2
        LOOP
            IF answer IS NOT NULL THEN
                RETURN answer || format(',"first_id":"%s","first_client":"%s","due":%s}',
                    waiting.id, waiting.client, lasts);
            END IF;
            EXIT WHEN waiting.shared; -- others may be let in with it
            -- Alone, and so the only one who holds it.
            DELETE FROM latchwork_lock l WHERE l.key = k AND l.id = i AND l.fence IS NOT NULL
                AND NOT l.shared AND l.expires_us > now_us RETURNING l.fence INTO old;
            EXIT WHEN old IS NULL;
            lasts := CASE WHEN waiting.client = c THEN waiting.ttl_us
                ELSE least(waiting.ttl_us, 2000000) END;
            UPDATE latchwork_lock l SET fence = greatest(nextval('latchwork_lock_fence'), old + 1),
                    previous = old, since_us = now_us, expires_us = now_us + lasts,
                    claimed = (waiting.client = c), place = NULL, until_us = NULL
                WHERE l.key = k AND l.id = waiting.id RETURNING l.fence INTO drawn;
            answer := format('{"was_held":true,"next_id":"%s","next_client":"%s","next_fence":%s,'
                '"old_fence":%s', waiting.id, waiting.client, drawn, old);
        END LOOP;
        IF answer IS NOT NULL THEN
            RETURN answer || '}';
        END IF;
    END IF;
    RETURN (SELECT to_jsonb(g)::text
        FROM latchwork_lock_give(c, ARRAY[turn], ARRAY[k], ARRAY[i]) g);
END $$;
"#;

/// The first words of an edit: one message, and the key is ours until the transaction ends. Whoever
/// is stopped in the middle loses it to the timeout, and so cannot stop all others.
pub(super) fn begin(turn: i64) -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \
         SET LOCAL idle_in_transaction_session_timeout = '5s'; \
         SELECT pg_advisory_xact_lock({turn})"
    )
}

pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// Lifts the fences to the clock, for a database that was restored from an old copy or lost its last
/// commits in a fail-over. Only from far below, and one at a time: whoever draws meanwhile stays
/// below the clock, and is not overtaken by an older reading of it.
pub(super) const RAISE: &str = "
SELECT setval('latchwork_lock_fence', t.now_us) FROM latchwork_lock_fence f,
    (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) t
WHERE t.now_us > f.last_value + 60000000
";

/// Asks for leases: see the function.
pub(super) const ASK: &str =
    "SELECT * FROM latchwork_lock_ask($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// The same for one.
pub(super) const ASK_ONE: &str =
    "SELECT latchwork_lock_ask_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// The same for one that was told of its turn.
pub(super) const CLAIM_ONE: &str =
    "SELECT latchwork_lock_claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// Gives leases back: see the function.
pub(super) const GIVE: &str = "SELECT * FROM latchwork_lock_give($1, $2, $3, $4)";

/// The same for one.
pub(super) const GIVE_ONE: &str = "SELECT latchwork_lock_give_one($1, $2, $3, $4)";

/// The same for one that others are known to wait for.
pub(super) const HAND_ON: &str = "SELECT latchwork_lock_hand_on($1, $2, $3, $4)";

/// The time, enough fences for whatever an edit may grant, and the rows of a key. It comes after
/// the lock as a statement of its own, so it sees what the one before has committed.
pub(super) const LOAD: &str = r#"
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       ARRAY(SELECT nextval('latchwork_lock_fence') FROM generate_series(1,
           4 + (SELECT count(*) FROM latchwork_lock WHERE key = $1 AND shared AND fence IS NULL))),
       coalesce((SELECT json_agg(to_jsonb(l) || jsonb_build_object('alive_us', c.alive_us))
                 FROM latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
                 WHERE key = $1), '[]')::text
"#;

/// The time and the rows of a key, for reading only.
pub(super) const PEEK: &str = r#"
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       coalesce((SELECT json_agg(to_jsonb(l) || jsonb_build_object('alive_us', c.alive_us))
                 FROM latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
                 WHERE key = $1), '[]')::text
"#;

/// A page of keys that are held or waited for, each like [`PEEK`].
pub(super) const LIST: &str = r#"
WITH t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us)
SELECT t.now_us, json_agg(to_jsonb(l) || jsonb_build_object('alive_us', c.alive_us))::text, l.key
FROM t, latchwork_lock l LEFT JOIN latchwork_lock_client c USING (client)
WHERE starts_with(l.key, $1) AND l.key > $2
  AND CASE WHEN l.fence IS NULL THEN c.alive_us > t.now_us ELSE l.expires_us > t.now_us END
GROUP BY t.now_us, l.key ORDER BY l.key LIMIT $3
"#;

/// Removes some rows of a key and writes others.
pub(super) const SAVE: &str = r#"
WITH gone AS (DELETE FROM latchwork_lock WHERE key = $1 AND id = ANY($2))
INSERT INTO latchwork_lock SELECT * FROM json_populate_recordset(NULL::latchwork_lock, $3::json)
ON CONFLICT (key, id) DO UPDATE SET
    shared = excluded.shared, owner = excluded.owner, note = excluded.note,
    process = excluded.process, client = excluded.client, ttl_us = excluded.ttl_us,
    since_us = excluded.since_us, place = excluded.place, until_us = excluded.until_us,
    fence = excluded.fence, previous = excluded.previous, expires_us = excluded.expires_us,
    claimed = excluded.claimed
"#;

/// Says that a process lives. Only hexadecimal digits and numbers go in, so that it can be one
/// message without parameters, which passes any pooler.
pub(super) fn beat(client: &str, micros: u128) -> String {
    format!(
        "INSERT INTO latchwork_lock_client (client, alive_us) VALUES ('{client}', \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {micros}) \
         ON CONFLICT (client) DO UPDATE SET alive_us = excluded.alive_us"
    )
}

/// Forgets processes that have been dead for a minute, and names keys with something that ran out
/// a while ago.
pub(super) const SWEEP: &str = r#"
WITH t AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us),
gone AS (DELETE FROM latchwork_lock_client USING t WHERE alive_us < t.now_us - 60000000)
SELECT DISTINCT l.key FROM t, latchwork_lock l WHERE l.expires_us < t.now_us - 10000000 LIMIT 100
"#;

/// How all waiters of a process stand: granted or not, and how long until something of their key
/// runs out. First in line first.
pub(super) fn look(client: &str) -> String {
    format!(
        "SELECT w.id, w.key, w.fence IS NOT NULL, (SELECT min(h.expires_us) FROM latchwork_lock h \
         WHERE h.key = w.key AND h.fence IS NOT NULL) \
         - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
         FROM latchwork_lock w WHERE w.client = '{client}' AND NOT w.claimed \
         ORDER BY w.place NULLS FIRST"
    )
}

/// Tells a process something. Channel and payload are ours: letters, digits and colons.
pub(super) fn notify(client: &str, payload: &str) -> String {
    format!("NOTIFY {}, '{payload}';", channel(client))
}

/// The channel of a process.
pub(super) fn channel(client: &str) -> String {
    format!("latchwork_lock_{client}")
}
