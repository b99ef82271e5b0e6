// Locks of node's `redlock` on one server: how often a second, and how long a wait.
//
// Each worker is a loop of its own on one shared connection, as the library is used. The figures
// go to standard output, one JSON object a line, as those of all peers do.
'use strict';

const Redis = require('ioredis');
const Redlock = require('redlock');
const { randomUUID } = require('node:crypto');

const name = process.argv[2];
// Its own pause between two attempts, and one as short as it goes; both without end.
const pauses = { redlock: 200, 'redlock-1ms': 1 };
if (!(name in pauses)) throw new Error(`unknown peer: ${name}`);
const retryJitter = Math.min(pauses[name], 100);
const span = Number(process.env.LATCHWORK_PEERS_SPAN) * 1000;
const ttl = 30_000;
const room = `peers-${randomUUID()}`;
const redis = new Redis(process.env.LATCHWORK_TEST_REDIS);
const locks = new Redlock([redis], { retryCount: -1, retryDelay: pauses[name], retryJitter });

const now = () => performance.now();
const tell = (figures) => console.log(JSON.stringify({ name, ...figures }));

// Runs the work in so many loops at once; what each returned, and how long it took.
async function together(workers, work) {
  const began = now();
  const isOver = () => now() - began > span;
  const found = await Promise.all(Array.from({ length: workers }, (_, n) => work(n, isOver)));
  return [found, span / 1000];
}

async function distinct(workers) {
  const [counts, took] = await together(workers, async (worker, isOver) => {
    let count = 0;
    for (; !isOver(); count += 1) {
      const held = await locks.lock(`${room}/${worker}/${count % 8}`, ttl);
      await held.unlock();
    }
    return count;
  });
  tell({ what: 'distinct', workers, rate: counts.reduce((a, b) => a + b) / took });
}

async function hot(workers) {
  const [waits, took] = await together(workers, async (_, isOver) => {
    const own = [];
    while (!isOver()) {
      const asked = now();
      const held = await locks.lock(`${room}/hot`, ttl);
      own.push((now() - asked) / 1000);
      await held.unlock();
    }
    return own;
  });
  // The last one of each came after the end.
  const grants = waits.reduce((sum, own) => sum + own.length - 1, 0);
  tell({ what: 'hot', workers, rate: grants / took, waits });
}

(async () => {
  await redis.ping();
  await distinct(1);
  await distinct(64);
  await hot(64);
  redis.disconnect();
})();
