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
