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
