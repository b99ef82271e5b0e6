//! The script says in Lua what the rules say in Rust: both are asked the same, and must agree.

use latchwork_lock::provider::{AcquireRequest, Acquired, LockProvider, Proof, Token, Wait};
use latchwork_lock::{
    Clock, Fence, Holder, InMemoryLockProvider, Inspection, Key, Mode, Owner, SystemClock, Waiter,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use crate::{eventually, provider, secs, shared, unique};

/// One backend, and those who wait there: some of one process, some of another.
struct Side<P> {
    provider: P,
    another: P,
    waiting: Vec<(AcquireRequest, JoinHandle<()>)>,
}

impl<P: LockProvider + Clone> Side<P> {
    fn new(provider: P, another: P) -> Self {
        Side { provider, another, waiting: Vec::new() }
    }

    fn of(&self, token: Token) -> &P {
        if token.expose().is_multiple_of(2) { &self.provider } else { &self.another }
    }

    async fn request(&mut self, request: &AcquireRequest) -> bool {
        if request.wait == Wait::No {
            let answer = self.of(request.token).acquire(request).await.expect("it answers");
            return matches!(answer, Acquired::Granted(_));
        }
        let (provider, asked) = (self.of(request.token).clone(), request.clone());
        let task = tokio::spawn(async move {
            provider.acquire(&asked).await.expect("it answers");
        });
        self.waiting.push((request.clone(), task));
        false
    }

    async fn release(&mut self, proof: Proof<'_>) -> bool {
        // Who gives up asks no more: until the task is gone, it may.
        for (_, task) in self.waiting.extract_if(.., |(asked, _)| asked.token == proof.token) {
            task.abort();
            let _ = task.await;
        }
        self.of(proof.token).release(proof).await.expect("it answers")
    }

    fn asks(&self, token: Token) -> Option<&JoinHandle<()>> {
        self.waiting.iter().find(|(asked, _)| asked.token == token).map(|(_, task)| task)
    }

    /// Whether a request that would wait holds, waits or was refused.
    async fn settled(&self, request: &AcquireRequest) -> bool {
        self.asks(request.token).is_none_or(JoinHandle::is_finished)
            || self.seen(&request.key).await.iter().any(|seen| seen.contains(name(request)))
    }

    /// Who holds and who waits; none while somebody does not know yet that it holds. It might be
    /// taken over before it looks, ask again, and take over in turn.
    async fn told(&self, key: &Key) -> Option<Vec<String>> {
        let seen = self.seen(key).await;
        let holds = |asked| seen.iter().any(|s| s.starts_with("holds") && s.contains(name(asked)));
        let all_know = self.waiting.iter().all(|(asked, task)| task.is_finished() || !holds(asked));
        all_know.then_some(seen)
    }

    async fn seen(&self, key: &Key) -> Vec<String> {
        told(&self.provider.inspect(key).await.expect("it answers"))
    }
}

fn name(request: &AcquireRequest) -> &str {
    request.note.as_deref().expect("named")
}

/// Who holds, in any order, and who waits, without the numbers that differ: the note names the
/// request.
fn told(seen: &Inspection) -> Vec<String> {
    let holder = |h: &Holder| format!("holds {:?} {:?} {}", h.note, h.owner, h.mode);
    let mut told: Vec<String> = seen.holders.iter().map(holder).collect();
    told.sort();
    let waiter = |w: &Waiter| format!("waits {:?} {:?} {}", w.note, w.owner, w.mode);
    told.extend(seen.waiters.iter().map(waiter));
    told
}

pub(crate) async fn it_decides_as_memory_does() {
    let seed = std::env::var("LATCHWORK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    let mut random = StdRng::seed_from_u64(seed);
    let redis = (provider(&shared()).await, provider(&shared()).await);
    for run in 0..60 {
        // Of some keys nearly all are writers without an owner: the script has short ways for them.
        let unusual = [0.0, 0.1, 1.0][run % 3];
        let key = Key::new(&unique("rules")).expect("legal");
        let mut ours = Side::new(redis.0.clone(), redis.1.clone());
        let memory = InMemoryLockProvider::new();
        let mut model = Side::new(memory.clone(), memory);
        let mut asked: Vec<AcquireRequest> = Vec::new();
        for step in 0..30 {
            let what = format!("LATCHWORK_SEED={seed}, run {run}, step {step}");
            let at = random.random_range(0..asked.len().max(1));
            let some = asked.get(at).cloned();
            match (random.random_range(0..16), some) {
                (0..7, _) | (_, None) => {
                    let mut request = request(&key, asked.len(), unusual, &mut random);
                    // Of two who wait for one owner, who looks last takes over: both may be right.
                    let is_its = |(other, _): &(AcquireRequest, _)| other.owner == request.owner;
                    if request.wait != Wait::No && ours.waiting.iter().any(is_its) {
                        request.owner = None;
                    }
                    asked.push(request.clone());
                    let waits = request.wait != Wait::No;
                    let told = (ours.request(&request).await, model.request(&request).await);
                    assert_eq!(told.0, told.1, "{what}: asking for {request:?}");
                    if waits {
                        // Who came first must be clear before the next one comes.
                        eventually(&what, async || {
                            ours.settled(&request).await && model.settled(&request).await
                        })
                        .await;
                    }
                }
                (7..12, Some(request)) => {
                    let proof = Proof { key: &key, token: request.token };
                    let told = (ours.release(proof).await, model.release(proof).await);
                    assert_eq!(told.0, told.1, "{what}: releasing {request:?}");
                }
                (12, Some(request)) => {
                    let proof = Proof { key: &key, token: request.token };
                    let (a, b) = (
                        ours.provider.renew(proof, secs(60)),
                        model.provider.renew(proof, secs(60)),
                    );
                    let told = (a.await.expect("it answers"), b.await.expect("it answers"));
                    assert_eq!(told.0, told.1, "{what}: renewing {request:?}");
                }
                (13, Some(request)) => {
                    let proof = Proof { key: &key, token: request.token };
                    let fresh = Token::random();
                    let a = ours.provider.rotate(proof, fresh, secs(60)).await.expect("it answers");
                    let b =
                        model.provider.rotate(proof, fresh, secs(60)).await.expect("it answers");
                    assert_eq!(a.is_some(), b.is_some(), "{what}: resuming {request:?}");
                    if a.is_some() {
                        asked[at].token = fresh;
                    }
                }
                (14, Some(request)) => {
                    // Asked again, as after a lost answer.
                    let again = request.with_wait(Wait::No);
                    if ours.asks(again.token).is_none() {
                        let told = (ours.request(&again).await, model.request(&again).await);
                        assert_eq!(told.0, told.1, "{what}: asking again {again:?}");
                    }
                }
                (_, Some(_)) => {
                    let all = random.random_bool(0.5);
                    let name = asked[at].note.clone();
                    let which = |seen: Inspection| -> Option<Fence> {
                        let found =
                            seen.holders.iter().find(|h| h.note.as_deref() == name.as_deref());
                        let fence = found.map_or(Fence::new(1), |holder| holder.fence);
                        (!all).then_some(fence)
                    };
                    let a = which(ours.provider.inspect(&key).await.expect("it answers"));
                    let b = which(model.provider.inspect(&key).await.expect("it answers"));
                    let a = ours.provider.break_lock(&key, a).await.expect("it answers");
                    let b = model.provider.break_lock(&key, b).await.expect("it answers");
                    assert_eq!(a.len(), b.len(), "{what}: breaking");
                }
            }
            let mut last = Default::default();
            let agree = async || {
                last = (ours.told(&key).await, model.told(&key).await);
                last.0.is_some() && last.0 == last.1
            };
            if tokio::time::timeout(secs(15), eventually(&what, agree)).await.is_err() {
                panic!("{what}: redis says {:#?}, memory says {:#?}", last.0, last.1);
            }
        }
        for request in &asked {
            let proof = Proof { key: &key, token: request.token };
            ours.release(proof).await;
        }
    }
}

/// `unusual` is how much of its share what is not common has.
fn request(key: &Key, number: usize, unusual: f64, random: &mut StdRng) -> AcquireRequest {
    let owner =
        random.random_bool(0.3 * unusual).then(|| format!("owner-{}", random.random_range(0..3)));
    let mode = if random.random_bool(0.5 * unusual) { Mode::Shared } else { Mode::Exclusive };
    let wait = if random.random_bool(0.6) { Wait::Forever } else { Wait::No };
    let mut request = AcquireRequest::new(key.clone(), secs(60), SystemClock.now())
        .with_mode(mode)
        .with_wait(wait)
        .with_note(format!("request-{number:03}"));
    request.owner = owner.map(|name| Owner::new(&name).expect("legal"));
    request
}
