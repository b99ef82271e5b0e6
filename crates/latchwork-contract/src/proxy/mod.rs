//! A TCP proxy that does to a connection what networks do.
//!
//! It stands on a loopback port of its own before any server. What happens to the bytes is told
//! at run time, each direction by itself, and holds for connections that exist as well as for
//! new ones:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! # let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
//! use latchwork_contract::proxy::{Direction, Flow, Proxy};
//! use std::time::Duration;
//!
//! let proxy = Proxy::before(server).await?;
//! // … connect to `proxy.address()` instead of the server …
//! proxy.set(Direction::ToClient, Flow::Drop);  // the grant is made, and the answer is lost
//! proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(200)));
//! proxy.pass_answers(2);                       // and only the third is lost
//! proxy.silence_open();                              // the connections that exist are silent for ever
//! proxy.black_hole();                          // new connections too lead nowhere
//! proxy.refuse().await;                        // nobody listens
//! proxy.pass().await?;                         // all is well again
//! proxy.cut();                                 // every connection is reset
//! # Ok(()) }
//! ```

mod connection;
mod control;
mod listen;
#[cfg(test)]
mod tests;

pub use control::{Counts, Direction, Flow, Proxy};
