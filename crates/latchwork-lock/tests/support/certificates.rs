//! Certificates that live as long as a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority: the file with its certificate.
pub fn authority(files: &Path, name: &str) -> PathBuf {
    let subject = format!("/CN={name}");
    let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
    let words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let more = ["-days", "2", "-subj", &subject, "-keyout", &key, "-out", &certificate];
    openssl(files, &[&words[..], &more[..]].concat());
    files.join(certificate)
}

/// A key and a certificate of an authority, for these names (`DNS:localhost,IP:127.0.0.1`).
pub fn signed(files: &Path, name: &str, ca: &str, names: &str) {
    let extensions = format!("subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth");
    std::fs::write(files.join("names"), extensions).expect("written");
    let (subject, key) = (format!("/CN={name}"), format!("{name}.key"));
    let (asked, certificate) = (format!("{name}.csr"), format!("{name}.pem"));
    let (ca_key, ca) = (format!("{ca}.key"), format!("{ca}.pem"));
    let words = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let more = ["-subj", &subject, "-keyout", &key, "-out", &asked];
    openssl(files, &[&words[..], &more[..]].concat());
    let words = ["x509", "-req", "-in", &asked, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
    let more = ["-days", "2", "-extfile", "names", "-out", &certificate];
    openssl(files, &[&words[..], &more[..]].concat());
}

/// The same, and its time is over. By the tool of an authority, since the other one knows no dates.
pub fn expired(files: &Path, name: &str, ca: &str, names: &str) {
    signed(files, name, ca, names);
    std::fs::write(files.join("index.txt"), "").expect("written");
    let settings = format!(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n\
         rand_serial=yes\ncertificate={ca}.pem\nprivate_key={ca}.key\n[p]\ncommonName=supplied\n"
    );
    std::fs::write(files.join("ca.cnf"), settings).expect("written");
    let (asked, certificate) = (format!("{name}.csr"), format!("{name}.pem"));
    let words =
        ["ca", "-batch", "-notext", "-config", "ca.cnf", "-extfile", "names", "-in", &asked];
    let more =
        ["-out", &certificate, "-startdate", "20200101000000Z", "-enddate", "20200201000000Z"];
    openssl(files, &[&words[..], &more[..]].concat());
}

fn openssl(files: &Path, words: &[&str]) {
    let out = Command::new("openssl").args(words).current_dir(files).output();
    let out = out.expect("openssl is installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
