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
