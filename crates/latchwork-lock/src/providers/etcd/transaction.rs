use etcd_client::{Compare, CompareOp};

use super::names::Part;
use super::provider::EtcdLockProvider;
use super::record;
use crate::Held;

impl EtcdLockProvider {
    /// Guards the user's own etcd transaction: it is carried out only while this very lease is
    /// held.
    ///
    /// Add it to the comparisons of a transaction on the same cluster. It is judged there,
    /// together with the write, so that not even a holder that was stopped past its ttl can
    /// write late: on etcd this is the fence, enforced. After a renewal it is still true; after a
    /// hand-over, take it from the new guard. The lease must be of this provider's cluster and
    /// prefix, or the comparison is never true.
    ///
    /// ```no_run
    /// # async fn example(mut client: etcd_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use etcd_client::{Txn, TxnOp};
    /// use latchwork_lock::{EtcdLockProvider, Locks};
    ///
    /// let provider = EtcdLockProvider::from_client(client.clone(), "app/").await?;
    /// let locks = Locks::new(provider.clone());
    /// let guard = locks.lock("order:123").acquire().await?;
    /// let write = Txn::new()
    ///     .when([provider.is_owner(&guard)])
    ///     .and_then([TxnOp::put("orders/123", "shipped", None)]);
    /// if !client.txn(write).await?.succeeded() {
    ///     // The lease was lost, and nothing was written.
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_owner(&self, held: &Held) -> Compare {
        let proof = held.proof();
        let id = record::id(proof.token);
        let entry = self.store.names.entry(proof.key.as_str(), Part::Hold, held.mode(), id);
        Compare::create_revision(entry, CompareOp::Equal, record::revision_of(held.fence()))
    }
}
