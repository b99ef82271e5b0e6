//! The callers' side of the [writer](super::writer).

use std::sync::Arc;
use std::sync::mpsc::Sender;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::boot::LocalProcess;
use super::error::{self, Failure};
use super::jobs::{JobOptions, Task, Tidy};
use super::record::RequesterInfo;
use super::store::Edit;
use super::writer::Order;
use crate::coordination::waiters::WaiterRegistry;
use crate::rules::Rules;
use crate::{Key, Moment, Result, process_label};

/// Sends jobs to the writer, which ends with the last of these.
#[derive(Clone)]
pub(super) struct WriterHandle {
    pub(super) here: Arc<LocalProcess>,
    pub(super) waiters: Arc<WaiterRegistry>,
    pub(super) orders: Sender<Order>,
}

impl WriterHandle {
    /// A requester of this process. Until when it is believed to be alive is set when it is queued.
    pub(super) fn asker(&self) -> RequesterInfo {
        let process = Arc::from(process_label());
        RequesterInfo { process, client: self.here.client, alive: Moment::default() }
    }

    /// False when the thread has ended.
    pub(super) fn send(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
    }

    /// Makes one change, even if the caller goes before it is made.
    pub(super) async fn edit<T: Send + 'static>(
        &self,
        during: &'static str,
        key: &Key,
        change: impl FnMut(&mut Rules<RequesterInfo>, &mut Edit<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let options = JobOptions { needed: true, ..JobOptions::default() };
        self.edit_with(during, key, options, |_, _, _| (), change).await
    }

    pub(super) async fn edit_with<T: Send + 'static>(
        &self,
        during: &'static str,
        key: &Key,
        options: JobOptions,
        look: fn(&mut T, &Rules<RequesterInfo>, &LocalProcess),
        change: impl FnMut(&mut Rules<RequesterInfo>, &mut Edit<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let key = key.clone();
        let task = Task { during, key, change, look, out: None, reply, options };
        self.send(Order::Change(Box::new(task)));
        answer.await.unwrap_or_else(|_| Err(error::gone(during)))
    }

    /// Reads between two changes.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        during: &'static str,
        look: impl FnOnce(&Connection, &LocalProcess) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(Order::Read(Box::new(move |connection, here| {
            let _ = reply.send(connection.and_then(|connection| look(connection, here)));
        })));
        match answer.await {
            Ok(out) => out.map_err(|failure| error::of(during, &failure)),
            Err(_) => Err(error::gone(during)),
        }
    }

    pub(super) fn tidy(&self, key: Key) {
        self.send(Order::Change(Box::new(Tidy(key))));
    }
}
