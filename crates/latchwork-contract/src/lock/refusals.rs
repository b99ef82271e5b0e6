//! Operations that are not declared must be refused, clearly.

use std::time::Duration;

use latchwork_lock::provider::Token;
use latchwork_lock::{Capability, Fence, Lease, Mode, PageRequest};

use super::Fixture;
use super::fixture::{FORCE, code};

/// The operations that somebody can ask for. A take-over is none of them: without it an owner is a name
/// that others are shown.
pub(super) const REFUSABLE: [Capability; 7] = [
    Capability::Shared,
    Capability::Wait,
    Capability::Renew,
    Capability::HandOver,
    Capability::Inspect,
    Capability::List,
    Capability::Break,
];

/// Every way to ask for the operation answers `not_supported`.
pub(super) async fn refused(f: &Fixture, capability: Capability) {
    let locks = f.open().await;
    let key = f.key("refused");
    let request = || locks.lock(&key);
    let answers = match capability {
        Capability::Shared => vec![code(request().shared().acquire().await)],
        Capability::Wait => vec![
            code(request().wait(Duration::from_secs(1)).acquire().await),
            code(request().wait_forever().acquire().await),
        ],
        Capability::Renew => {
            let renewing = request().auto_renew(Duration::from_secs(60)).acquire().await;
            let guard = request().acquire().await.expect("a free key");
            vec![code(renewing), code(guard.refresh_with(FORCE).await)]
        }
        Capability::HandOver => {
            let guard = request().acquire().await.expect("a free key");
            let lease = Lease {
                prefix: locks.prefix().to_owned(),
                key: key.clone(),
                mode: Mode::Exclusive,
                owner: None,
                token: Token::random(),
                fence: Fence::new(1),
                ttl: Duration::from_secs(30),
                acquired_at: locks.clock().wall(),
                expires_at: locks.clock().wall(),
            };
            vec![code(guard.into_lease().await), code(locks.resume(lease).await)]
        }
        Capability::Inspect => {
            vec![code(locks.inspect(&key).await), code(locks.exists(&key).await)]
        }
        Capability::List => vec![code(locks.list("", PageRequest::default()).await)],
        Capability::Break => vec![
            code(locks.break_lock(&key).await),
            code(locks.break_lease(&key, Fence::new(1)).await),
        ],
        _ => panic!("nobody can ask for {}", capability.name()),
    };
    for answer in answers {
        assert_eq!(answer, "not_supported", "{}", capability.name());
    }
}
