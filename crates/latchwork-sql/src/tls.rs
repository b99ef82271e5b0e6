//! What is wrong with a TLS connection, told apart.

use std::error::Error;

/// What to do about a TLS connection that did not come about; none where it is not about TLS. `ca` and
/// `mode` are what the address calls these parameters; `off` is the mode without TLS.
///
/// By the texts of rustls and of the driver, which nobody translates: the driver hides the types.
pub(crate) fn fault(
    error: &(dyn Error + 'static),
    ca: &str,
    mode: &str,
    off: &str,
) -> Option<String> {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        said = format!("{said}: {cause}");
        next = cause.source();
    }
    if said.contains("does not support TLS") {
        return Some(format!(
            "the server offers no TLS, which {mode} demands; switch it on there, or write {mode}={off}"
        ));
    }
    if let Some((_, why)) = said.split_once("invalid peer certificate: ") {
        let is = |words: &[&str]| words.iter().any(|word| why.contains(word));
        return Some(match () {
            () if is(&["UnknownIssuer", "CaUsedAsEndEntity"]) => format!(
                "the server's certificate is not signed by an authority that is trusted here; name its \
                 authority with {ca}"
            ),
            () if is(&["not valid for name", "NotValidForName"]) => {
                "the server's certificate is for another host than the address names".to_owned()
            }
            () if is(&["expired", "Expired"]) => {
                "the server's certificate has expired; or the clock here is wrong".to_owned()
            }
            () if is(&["not valid yet", "NotValidYet"]) => {
                "the server's certificate is not valid yet; or the clock here is wrong".to_owned()
            }
            () => "the server's certificate is not accepted".to_owned(),
        });
    }
    said.contains("received fatal alert").then(|| {
        "the server refuses the TLS connection; does it demand a client certificate, signed by its own \
         authority and not expired?"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_own_message() {
        let told =
            |said: &str| fault(&*Box::<dyn Error>::from(said), "sslrootcert", "sslmode", "x");
        let peer = |why: &str| told(&format!("invalid peer certificate: {why}")).expect("TLS");
        assert!(peer("UnknownIssuer").contains("sslrootcert"));
        assert!(peer("certificate not valid for name \"a\"").contains("another host"));
        assert!(peer("certificate expired: verification time 7").contains("has expired"));
        assert!(peer("certificate not valid yet: verification time 7").contains("not valid yet"));
        assert!(told("server does not support TLS").expect("TLS").contains("offers no TLS"));
        assert!(told("received fatal alert: BadCertificate").expect("TLS").contains("client"));
        assert_eq!(told("connection refused"), None);
    }
}
