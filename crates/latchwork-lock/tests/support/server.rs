//! A server that only one test uses, so that it may be stopped and killed.

pub use latchwork_contract::own_server::{OwnServer, ports};
