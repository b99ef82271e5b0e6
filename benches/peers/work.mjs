// Drains a queue with a peer, and prints jobs per second, and bytes of WAL and transactions per job:
// node work.mjs PEER JOBS CONCURRENCY BATCH URL
// The clock stops when the last completion is stored, which is asked of the database.
import pg from "pg";

const [peer, jobsText, concurrencyText, batchText, url] = process.argv.slice(2);
const jobs = Number(jobsText), concurrency = Number(concurrencyText), batch = Number(batchText);
const body = "x".repeat(1000);
const pool = new pg.Pool({ connectionString: url, max: 4 });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(sql, expected) {
  for (;;) {
    const { rows } = await pool.query(sql);
    if (Number(rows[0].n) === expected) return;
    await sleep(2);
  }
}

// Bytes of WAL and transactions until now. Sessions tell what they did at their end.
async function cost() {
  await sleep(300);
  const { rows } = await pool.query(
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 AS wal, (xact_commit + xact_rollback)::float8 AS tx FROM pg_stat_database WHERE datname = current_database()",
  );
  return rows[0];
}

let before;

async function graphile() {
  const { Logger, run, runMigrations } = await import("graphile-worker");
  const schema = "graphile_worker";
  await runMigrations({ connectionString: url });
  await pool.query(
    `SELECT count(*) FROM (SELECT ${schema}.add_job('noop', json_build_object('n', g, 'body', $2::text)) FROM generate_series(1, $1) g) f`,
    [jobs, body],
  );
  await pool.query("VACUUM ANALYZE");
  await pool.query("CHECKPOINT");
  before = await cost();
  const preset = batch > 1
    ? { worker: { localQueue: { size: Math.max(batch, concurrency + 1) }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } }
    : {};
  const begin = performance.now();
  const runner = await run({
    connectionString: url,
    concurrency,
    noHandleSignals: true,
    pollInterval: 1000,
    maxPoolSize: Math.min(concurrency + 2, 32),
    taskList: { noop: async () => {} },
    logger: new Logger(() => () => {}), // a line for each job would be a part of what is measured
    preset,
  });
  await until(`SELECT count(*) AS n FROM ${schema}._private_jobs`, 0);
  const seconds = (performance.now() - begin) / 1000;
  await runner.stop();
  return seconds;
}

async function pgboss() {
  const { PgBoss } = await import("pg-boss");
  const boss = new PgBoss({ connectionString: url, max: Math.min(concurrency + 2, 32), supervise: false, schedule: false });
  boss.on("error", () => {});
  await boss.start();
  await boss.createQueue("noop");
  for (let n = 0; n < jobs; n += 1000) {
    const part = Array.from({ length: Math.min(1000, jobs - n) }, (_, i) => ({ data: { n: n + i, body } }));
    await boss.insert("noop", part);
  }
  await pool.query("VACUUM ANALYZE");
  await pool.query("CHECKPOINT");
  before = await cost();
  const begin = performance.now();
  const agent = async () => {
    for (;;) {
      const got = await boss.fetch("noop", { batchSize: batch });
      if (!got || got.length === 0) return;
      await boss.complete("noop", got.map((job) => job.id));
    }
  };
  await Promise.all(Array.from({ length: concurrency }, agent));
  await until("SELECT count(*) AS n FROM pgboss.job WHERE name = 'noop' AND state <> 'completed'", 0);
  const seconds = (performance.now() - begin) / 1000;
  await boss.stop({ graceful: false, close: true }).catch(() => {});
  return seconds;
}

const peers = { graphile, pgboss };
if (!peers[peer]) {
  console.error(`no such peer: ${peer}`);
  process.exit(2);
}
const seconds = await peers[peer]();
const after = await cost();
const each = (name) => (after[name] - before[name]) / jobs;
console.log(`${Math.round(jobs / seconds)} ${Math.round(each("wal"))} ${each("tx").toFixed(2)}`);
await pool.end();
process.exit(0);
