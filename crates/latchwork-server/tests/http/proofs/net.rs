//! Requests over real connections, one each.

use std::io::{Error, ErrorKind, Result};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends a request and leaves the answer in the connection.
pub(super) async fn send(
    port: u16,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// The status and the body of an answer. One that was cut off is an error.
pub(super) async fn answer(stream: TcpStream) -> Result<(u16, Value)> {
    let (status, _, body) = whole(stream).await?;
    Ok((status, body))
}

/// The status, the head in lower case and the body of an answer.
pub(super) async fn whole(mut stream: TcpStream) -> Result<(u16, String, Value)> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    let cut = || Error::from(ErrorKind::UnexpectedEof);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
    let head = head.to_ascii_lowercase();
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length:"));
    if length.and_then(|length| length.trim().parse().ok()) != Some(body.len()) {
        return Err(cut());
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    let body = serde_json::from_str(body).map_err(|_| cut())?;
    Ok((status, head, body))
}

/// A request as this agent.
pub(super) async fn post(port: u16, path: &str, agent: &str, body: &Value) -> Result<(u16, Value)> {
    post_with(port, path, &format!("latchwork-actor: agent:{agent}\r\n"), body).await
}

pub(super) async fn post_with(
    port: u16,
    path: &str,
    headers: &str,
    body: &Value,
) -> Result<(u16, Value)> {
    answer(send(port, "POST", path, headers, &body.to_string()).await?).await
}

pub(super) async fn get(port: u16, path: &str) -> Result<(u16, Value)> {
    answer(send(port, "GET", path, "", "").await?).await
}
