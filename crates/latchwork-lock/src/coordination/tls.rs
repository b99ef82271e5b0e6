//! What is wrong with a TLS connection, told apart.

/// What to do about a TLS connection that did not come about, by what rustls says of it; none where it
/// is not about TLS. The texts are rustls's own, which nobody translates.
pub(crate) fn fault(said: &str) -> Option<&'static str> {
    if let Some((_, why)) = said.split_once("invalid peer certificate: ") {
        let is = |words: &[&str]| words.iter().any(|word| why.contains(word));
        return Some(match () {
            () if is(&["UnknownIssuer", "CaUsedAsEndEntity"]) => {
                "the server's certificate is not signed by an authority that is trusted here: name its \
                 authority with tls-ca=FILE"
            }
            () if is(&["not valid for name", "NotValidForName"]) => {
                "the server's certificate is for another host than the address names"
            }
            () if is(&["expired", "Expired"]) => {
                "the server's certificate has expired; or the clock here is wrong"
            }
            () if is(&["not valid yet", "NotValidYet"]) => {
                "the server's certificate is not valid yet; or the clock here is wrong"
            }
            () => "the server's certificate is not accepted",
        });
    }
    if said.contains("received fatal alert") {
        return Some(
            "the server refuses the TLS connection: does it demand a client certificate \
             (tls-cert=FILE and tls-key=FILE), signed by its own authority and not expired?",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_own_message() {
        let peer = "invalid peer certificate: ";
        for (said, word) in [
            ("UnknownIssuer", "authority"),
            ("certificate not valid for name \"a\"", "another host"),
            ("certificate expired: verification time 7", "has expired"),
            ("certificate not valid yet: verification time 7", "not valid yet"),
            ("BadSignature", "not accepted"),
        ] {
            let told = fault(&format!("io: {peer}{said}")).expect(said);
            assert!(told.contains(word), "{said}: {told}");
        }
        let told = fault("received fatal alert: CertificateRequired").expect("an alert");
        assert!(told.contains("tls-cert"), "{told}");
        assert_eq!(fault("connection refused"), None);
    }
}
