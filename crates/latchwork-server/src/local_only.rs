//! Keeps web pages out where no tokens are configured.
//!
//! A page of any site can have the browser send requests to loopback, and a name that it controls can
//! point there (DNS rebinding). Such a request names itself: by a `Host` that is no loopback name, by an
//! `Origin` of another site, or by `Sec-Fetch-Site`. Programs send none of these.
//!
//! With tokens none of this is needed: a page cannot know one, no cookie counts, and a browser sends no
//! `Authorization` to a site that does not allow it, which this server never does.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};

use crate::app::App;
use crate::error::ApiError;

pub(crate) async fn refuse_web_pages(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Response {
    let configured = match &app.tokens {
        Some(tokens) => tokens.are_configured().await,
        None => Ok(false),
    };
    let checked = match configured {
        Ok(true) => Ok(()),
        // A store that does not answer decides nothing: the check of access refuses then.
        Ok(false) | Err(_) => check(request.headers(), request.uri()),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check(headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    // A request may have several of each, and a host in its target: all of them count.
    let mut hosts: Vec<_> =
        headers.get_all(header::HOST).iter().map(|host| host.to_str()).collect();
    hosts.extend(uri.authority().map(|authority| Ok(authority.as_str())));
    let local = |host: &Result<&str, _>| host.as_ref().is_ok_and(|host| is_loopback(host));
    if hosts.is_empty() || !hosts.iter().all(local) {
        return Err(ApiError::new(
            403,
            "host_refused",
            "without tokens this server answers to localhost, 127.0.0.1 and [::1] only",
        ));
    }
    for origin in headers.get_all(header::ORIGIN) {
        let same = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
        let same = same.is_some_and(|origin| {
            hosts.iter().any(|host| host.as_ref().is_ok_and(|host| *host == origin))
        });
        if !same {
            return Err(ApiError::new(403, "origin_refused", "no web page may use this server"));
        }
    }
    let mut sites = headers.get_all("sec-fetch-site").iter().map(|value| value.as_bytes());
    match sites.all(|site| matches!(site, b"same-origin" | b"none")) {
        true => Ok(()),
        false => {
            Err(ApiError::new(403, "origin_refused", "no page of another site may use this server"))
        }
    }
}

/// Whether a `Host` names this machine's loopback.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || is_port(port) => address,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) => return false,
            None => host,
        },
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn loopback_names_only() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8420", "127.1.2.3", "[::1]:1", "[::1]"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "10.0.0.1",
            "localhost:80@example.com",
            "[::1",
            "[::1]x",
            "[::2]",
            "0.0.0.0",
            "user@localhost",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    proptest! {
        #[test]
        fn no_name_but_those_of_loopback_is_taken(host in prop_oneof![
            "\\PC{0,20}",
            "(localhost|127\\.0\\.0\\.1|\\[::1\\])[.:@/a-z0-9\\[\\]-]{0,10}",
        ]) {
            if is_loopback(&host) {
                // As every other program reads it.
                let url = url::Url::parse(&format!("http://{host}/"));
                let named = url.ok().and_then(|url| url.host().map(|host| host.to_owned()));
                let local = match named {
                    Some(url::Host::Domain(name)) => name == "localhost",
                    Some(url::Host::Ipv4(address)) => address.is_loopback(),
                    Some(url::Host::Ipv6(address)) => address.is_loopback(),
                    // A port that is none: nobody can be there.
                    None => true,
                };
                prop_assert!(local, "{host}");
            }
        }
    }
}
