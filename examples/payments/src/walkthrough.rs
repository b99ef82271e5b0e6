//! What happens to a few payments in one file, which two services share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use latchwork_lock::{Locks, ManualClock, SqliteLockProvider};
use latchwork_payments::application::ports::{
    CaptureRepository, Changes, Fences, PaymentRepository, UnitOfWork, lock_key,
};
use latchwork_payments::application::{
    CapturePaymentRequest, CapturePaymentResponse, Decision, Error, Result as Answer, Service,
    TransferAmountRequest,
};
use latchwork_payments::domain::{
    Amount, Currency, IdempotencyKey, Payment, PaymentId, PaymentState,
};
use latchwork_payments::infrastructure::SqliteStore;

use crate::Transcript;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) async fn run(out: &mut Transcript) -> Result<(), Failure> {
    let directory = tempfile::tempdir()
        .map_err(|error| format!("no temporary directory ({error}): set TMPDIR to one"))?;
    out.line("A payment is captured once, however often it is requested.");
    let shop = Shop::open(&directory.path().join("payments.db")).await?;
    let id = authorize(out, &shop).await?;
    let first = capture(out, &shop, id).await?;
    replay(out, &shop, &first).await?;
    conflict(out, &shop, id).await?;
    two_at_once(out, &shop).await?;
    expired_window(out, &shop).await?;
    crossing_transfers(out, &shop).await?;
    late_writer(out, &shop).await?;
    shop.close().await;
    Ok(())
}

async fn authorize(out: &mut Transcript, shop: &Shop) -> Result<PaymentId, Failure> {
    out.section("Authorize");
    let id = PaymentId::random();
    let payment = shop.one.create.execute(id, amount(12_000)?, Currency::parse("EUR")?).await?;
    out.line(format_args!("Payment {id} of 120.00 EUR is asked for."));
    out.check("it is pending", payment.state() == PaymentState::Pending)?;
    let early = shop.one.capture.execute(request(id, "early", 12_000)?).await;
    refused(out, "it cannot be captured yet", early, "illegal_transition")?;
    let payment = shop.one.authorize.execute(id, APPROVED).await?;
    out.line("The bank says yes, and gives an hour to take the money.");
    out.check("it is authorized", payment.state() == PaymentState::Authorized)?;
    Ok(id)
}

async fn capture(
    out: &mut Transcript,
    shop: &Shop,
    id: PaymentId,
) -> Result<CapturePaymentResponse, Failure> {
    out.section("Capture");
    let answer = shop.one.capture.execute(request(id, "order-7", 12_000)?).await?;
    out.line(format_args!("Capture {} takes 120.00 EUR, by the key order-7.", answer.capture.id));
    out.check("it is new", !answer.replayed)?;
    out.check("the payment is captured", shop.state(id).await? == PaymentState::Captured)?;
    Ok(answer)
}

async fn replay(
    out: &mut Transcript,
    shop: &Shop,
    first: &CapturePaymentResponse,
) -> Result<(), Failure> {
    out.section("Replay");
    out.line(
        "The caller never heard the answer, and asks again with the same key: another service.",
    );
    let again = request(first.capture.payment_id, "order-7", 12_000)?;
    let again = shop.two.capture.execute(again).await?;
    out.check("it gets the same capture, marked as a replay", again.replayed)?;
    out.check("not a cent moved", again.capture == first.capture)?;
    Ok(())
}

async fn conflict(out: &mut Transcript, shop: &Shop, id: PaymentId) -> Result<(), Failure> {
    out.section("Conflict");
    let other = shop.one.capture.execute(request(id, "order-7", 9_900)?).await;
    refused(out, "the same key with another amount is refused", other, "idempotency_conflict")?;
    let other = shop.one.capture.execute(request(id, "order-8", 12_000)?).await;
    refused(out, "and so is another key", other, "payment_already_captured")?;
    Ok(())
}

async fn two_at_once(out: &mut Transcript, shop: &Shop) -> Result<(), Failure> {
    out.section("Two at once");
    for (keys, told) in [
        (["same", "same"], "Both services are asked at once, with the same key."),
        (["this", "that"], "Both services are asked at once, with different keys."),
    ] {
        let id = shop.authorized(5_000).await?;
        let (one, two) = tokio::join!(
            shop.one.capture.execute(request(id, keys[0], 5_000)?),
            shop.two.capture.execute(request(id, keys[1], 5_000)?),
        );
        out.line(told);
        let captures = shop.store.captures_of(id).await?;
        out.check("there is one capture", captures.len() == 1)?;
        match (one, two) {
            (Ok(one), Ok(two)) => {
                out.check("both have it", one.capture == two.capture)?;
                out.check("one of them as a replay", one.replayed != two.replayed)?;
            }
            (Ok(_), Err(other)) | (Err(other), Ok(_)) => {
                let was_late = other.code() == "payment_already_captured";
                out.check(format_args!("the other one is told: {other}"), was_late)?;
            }
            (Err(one), Err(two)) => out.check(format_args!("{one}; {two}"), false)?,
        }
    }
    Ok(())
}

async fn expired_window(out: &mut Transcript, shop: &Shop) -> Result<(), Failure> {
    out.section("Expired window");
    let id = shop.authorized(3_000).await?;
    shop.clock.advance(HOUR);
    out.line("An hour passes.");
    let late = shop.one.capture.execute(request(id, "late", 3_000)?).await;
    refused(out, "at the end of the window it is too late", late, "payment_expired")?;
    out.check("nothing was taken", shop.store.captures_of(id).await?.is_empty())?;
    Ok(())
}

async fn crossing_transfers(out: &mut Transcript, shop: &Shop) -> Result<(), Failure> {
    const ROUNDS: usize = 10;
    out.section("Crossing transfers");
    let (a, b) = (shop.authorized(10_000).await?, shop.authorized(10_000).await?);
    let transfer = |from, to, round: usize, cents| {
        let idempotency_key = IdempotencyKey::parse(&format!("split-{round}"))?;
        Ok::<_, Error>(TransferAmountRequest { from, to, idempotency_key, amount: amount(cents)? })
    };
    let mut ended = 0;
    for round in 0..ROUNDS {
        let (there, back) = tokio::join!(
            shop.one.transfer.execute(transfer(a, b, round, 500)?),
            shop.two.transfer.execute(transfer(b, a, round, 200)?),
        );
        // In a circle each would wait for the other until its patience ends.
        ended += usize::from(there.is_ok()) + usize::from(back.is_ok());
    }
    out.line(format_args!("{ROUNDS} times 5.00 go one way, while 2.00 go the other way."));
    out.check(format_args!("all {ended} end"), ended == 2 * ROUNDS)?;
    let again = shop.two.transfer.execute(transfer(a, b, 0, 500)?).await?;
    out.check("one that is asked for again moves nothing", again.replayed)?;
    let (a, b) = (shop.payment(a).await?.data().amount, shop.payment(b).await?.data().amount);
    out.check(format_args!("{a} and {b} are left"), (a.cents(), b.cents()) == (7_000, 13_000))?;
    Ok(())
}

async fn late_writer(out: &mut Transcript, shop: &Shop) -> Result<(), Failure> {
    out.section("The late writer");
    let id = shop.authorized(8_000).await?;
    let ana = shop.locks.lock(lock_key(id)).ttl(Duration::from_millis(200)).acquire().await?;
    let fences = Fences::of([&*ana]);
    let mut payment = shop.payment(id).await?;
    out.line("Ana has the lock for 200 ms and reads the payment. Then her process is stopped.");
    let ben = shop.two.capture.execute(request(id, "ben", 8_000)?).await?;
    out.check("her lease ends, and Ben captures", !ben.replayed)?;
    out.line("Ana wakes up and saves what she made of it, as if nothing had happened.");
    payment.fail()?;
    let changes = Changes { payments: vec![payment], ..Changes::default() };
    let late = shop.store.commit(&fences, changes).await;
    refused(out, "the store refuses her", late, "stale_fence")?;
    out.check("the payment is captured", shop.state(id).await? == PaymentState::Captured)?;
    Ok(())
}

/// Checks that something was refused for the right reason, and tells what was said.
fn refused<T>(
    out: &mut Transcript,
    told: &str,
    answer: Answer<T>,
    code: &str,
) -> Result<(), Failure> {
    let Err(error) = answer else { return Ok(out.check(told, false)?) };
    out.check(told, error.code() == code)?;
    out.line(format_args!("  {}: {error}", error.code()));
    Ok(())
}

const APPROVED: Decision = Decision::Approved { capture_window: HOUR };

fn amount(cents: i64) -> Answer<Amount> {
    Ok(Amount::from_cents(cents)?)
}

fn request(payment_id: PaymentId, key: &str, cents: i64) -> Answer<CapturePaymentRequest> {
    let idempotency_key = IdempotencyKey::parse(key)?;
    Ok(CapturePaymentRequest { payment_id, idempotency_key, amount: amount(cents)? })
}

/// Two services on one file, each with connections of its own, as two processes would have them.
struct Shop {
    one: Service<SqliteStore>,
    two: Service<SqliteStore>,
    /// Those of the first.
    locks: Locks,
    store: SqliteStore,
    /// The time that both services see; the locks have their own.
    clock: ManualClock,
}

impl Shop {
    async fn open(file: &Path) -> Result<Shop, Failure> {
        let clock = ManualClock::new();
        let open = async || {
            let locks = Locks::new(SqliteLockProvider::open_file(file).await?);
            Ok::<_, Error>((locks, SqliteStore::open(file).await?))
        };
        let service = |(locks, store)| Service::new(locks, Arc::new(clock.clone()), store);
        let (locks, store) = open().await?;
        let one = service((locks.clone(), store.clone()));
        let two = service(open().await?);
        Ok(Shop { one, two, locks, store, clock })
    }

    async fn authorized(&self, cents: i64) -> Answer<PaymentId> {
        let id = PaymentId::random();
        self.one.create.execute(id, amount(cents)?, Currency::parse("EUR")?).await?;
        self.one.authorize.execute(id, APPROVED).await?;
        Ok(id)
    }

    async fn payment(&self, id: PaymentId) -> Answer<Payment> {
        self.store.payment(id).await?.ok_or(Error::PaymentNotFound { id })
    }

    async fn state(&self, id: PaymentId) -> Answer<PaymentState> {
        Ok(self.payment(id).await?.state())
    }

    async fn close(self) {
        self.locks.close().await;
        self.store.close().await;
    }
}
