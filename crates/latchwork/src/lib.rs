//! Latchwork moves shared state safely: a *lock* decides who may move it, a
//! *flow* how it moves, and *work* lets programs, people and agents move it together.
//!
//! This is the crate to add; it brings the layers together behind features.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> latchwork::lock::Result<()> {
//! let locks = latchwork::connect("memory:").await?;
//! let guard = locks.lock("order:123").acquire().await?;
//! println!("write with fence {}", guard.fence());
//! guard.release().await?;
//! # Ok(()) }
//! ```

#[cfg(feature = "flow")]
pub use latchwork_flow as flow;
pub use latchwork_lock as lock;
#[doc(no_inline)]
pub use latchwork_lock::{Guard, Locks};
#[cfg(feature = "temporal")]
pub use latchwork_temporal as temporal;
#[cfg(feature = "work")]
pub use latchwork_work as work;

/// What most programs need of locks and flows: `use latchwork::prelude::*`.
///
/// Neither `Error` nor `Result` is in it, since each layer has its own:
/// [`lock::Error`] and, with the feature `flow`, `flow::Error`.
///
/// ```
/// use latchwork::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Locks::connect("memory:").await?;
/// # #[cfg(feature = "flow")] {
/// let machine = StateMachine::<JsonState>::builder("publish")
///     .locks(&locks, EntityKey::new())
///     .lock_config(LockConfig { strategy: LockStrategy::Wait, ..LockConfig::default() })
///     .action(MergeDelta)
///     .build()?;
/// # assert_eq!(machine.name(), "publish"); }
/// let guard: Guard = locks.lock("order:123").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub mod prelude {
    #[cfg(feature = "flow")]
    pub use latchwork_flow::prelude::*;
    pub use latchwork_lock::prelude::*;
}

/// Locks at an address of any provider that this build has: those of
/// [`Locks::connect`](lock::Locks::connect), and with the feature `temporal` also
/// `temporal://host:7233/namespace?task-queue=…`, or `temporals://…` with TLS.
///
/// # Errors
/// As for [`Locks::connect`](lock::Locks::connect).
pub async fn connect(url: &str) -> lock::Result<Locks> {
    connect_with(url, &lock::ConnectOptions::default()).await
}

/// The same, as the options say: a backend that cannot be reached for the moment may be tried again.
///
/// # Errors
/// As for [`Locks::connect_with`](lock::Locks::connect_with).
pub async fn connect_with(url: &str, options: &lock::ConnectOptions) -> lock::Result<Locks> {
    #[cfg(feature = "temporal")]
    if matches!(url.split_once(':'), Some(("temporal" | "temporals", _))) {
        let open = || async move {
            latchwork_temporal::TemporalLockProvider::connect(url).await.map(Locks::new)
        };
        return Locks::open_with(url, options, open).await;
    }
    Locks::connect_with(url, options).await
}

/// The README's examples, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The examples of the work layer's documentation, so that they compile.
#[cfg(all(doctest, feature = "work", feature = "sqlite", feature = "postgres"))]
#[doc = include_str!("../../../docs/work.md")]
pub struct Work;

/// The examples of the flow guide.
#[cfg(all(doctest, feature = "flow"))]
#[doc = include_str!("../../../docs/flows.md")]
pub struct FlowGuide;
