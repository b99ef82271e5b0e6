//! `latchwork serve`, as its own words say.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LockDirectory, eventually, latchwork};

pub(crate) struct Server {
    child: Child,
    greeting: Vec<String>,
}

impl Server {
    pub(crate) fn start(place: &LockDirectory) -> Self {
        Self::start_with(place, &[])
    }

    fn start_with(place: &LockDirectory, more: &[&str]) -> Self {
        let mut command = latchwork();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(place.path("data"));
        command.args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut greeting: Vec<String> = Vec::new();
        // The last line is the third command.
        while greeting.iter().filter(|line| line.starts_with("curl ")).count() < 3 {
            greeting.push(lines.next().expect("it goes on").expect("readable"));
        }
        Server { child, greeting }
    }

    /// Where it listens, as it says itself.
    pub(crate) fn address(&self) -> &str {
        let line = &self.greeting[0];
        let address = &line[line.find("http").expect("an address")..];
        address.split([',', ' ']).next().expect("an address")
    }

    pub(crate) fn end(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// A test that fails leaves no server behind.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_commands_of_the_greeting_work_as_printed() {
    let place = LockDirectory::new();
    let server = Server::start(&place);
    let data = place.path("data").join("latchwork.db");
    let named = format!("its data is in {}", data.display());
    assert!(server.greeting.contains(&named) && data.exists(), "{:?}", server.greeting);
    let commands = server.greeting.iter().filter(|line| line.starts_with("curl "));
    let answers: Vec<serde_json::Value> = commands
        .map(|command| {
            let command = command.replacen("curl ", "curl -sS --fail-with-body ", 1);
            let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{command}: {said}");
            serde_json::from_str(&said).expect("JSON")
        })
        .collect();
    assert_eq!(answers[0]["order"]["state"], "queued");
    assert_eq!(answers[1]["leases"][0]["input"]["name"], "Ada");
    assert_eq!(answers[2]["orders"][0]["items_count"]["leased"], 1);
    server.end();
    // What was done is there after a restart.
    let server = Server::start(&place);
    let command = server.greeting.last().expect("a line").replacen("curl ", "curl -sS ", 1);
    let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    let orders: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(orders["orders"][0]["id"], answers[0]["order"]["id"]);
    server.end();
}

#[test]
fn its_data_is_for_its_user_only_and_a_second_signal_ends_it_at_once() {
    let place = LockDirectory::new();
    let mut server = Server::start(&place);
    let mode = std::fs::metadata(place.path("data")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    // A request that does not come to its end holds the server up.
    let address = server.address().trim_start_matches("http://").to_owned();
    let mut client = TcpStream::connect(&address).expect("it listens");
    let head = format!(
        "POST /v1/orders HTTP/1.1\r\nhost: {address}\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ncontent-length: 9\r\n\r\n"
    );
    client.write_all(head.as_bytes()).expect("sent");
    let mut answer = [0; 12];
    client.read_exact(&mut answer).expect("it reads the body");
    assert_eq!(&answer, b"HTTP/1.1 100");
    let pid = Pid::from_child(&server.child);
    let mut said = BufReader::new(server.child.stderr.take().expect("piped")).lines();
    kill_process(pid, Signal::TERM).expect("it runs");
    let note = said.find(|line| line.as_ref().is_ok_and(|line| line.contains("second signal")));
    assert!(note.is_some(), "it says that it ends");
    assert!(server.child.try_wait().expect("ours").is_none(), "it waits for the request");
    kill_process(pid, Signal::TERM).expect("it runs");
    let ended = server.child.wait().expect("it ends");
    assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{ended}");
}

#[test]
fn it_refuses_an_address_that_others_can_reach() {
    let place = LockDirectory::new();
    let mut command = latchwork();
    command.args(["serve", "--listen", "0.0.0.0:0", "--data"]).arg(place.path("data"));
    let output = command.output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("127.0.0.1") && said.contains("tokens"), "{said}");
}

#[test]
fn what_keeps_it_from_serving_is_said_with_what_to_do() {
    let place = LockDirectory::new();
    let server = Server::start(&place);
    let taken = server.address().trim_start_matches("http://").to_owned();
    std::fs::write(place.path("file"), "").expect("written");
    let file = place.path("file").display().to_string();
    let other = place.path("other").display().to_string();
    let away = "postgres://me:hush@127.0.0.1:1/orders";
    let tries: [(&[&str], i32, &[&str]); 6] = [
        (&["--listen", &taken, "--data", &other], 69, &[&taken, "--listen"]),
        (&["--listen", "127.0.0.1"], 64, &["--listen: \"127.0.0.1\"", "127.0.0.1:8420"]),
        (&["--listen", "127.0.0.1:0", "--data", &file], 69, &["file", "--data"]),
        (
            &["--listen", "127.0.0.1:0", "--data", &other, "--types", "/no/such/types"],
            64,
            &["--types: \"/no/such/types\" is not a directory"],
        ),
        (
            &["--listen", "127.0.0.1:0", "--database", away],
            69,
            &["postgres://me:***@127.0.0.1:1/orders", "no server listens there"],
        ),
        (
            &["--listen", "127.0.0.1:0", "--database", "mysql://me:hush@127.0.0.1/orders"],
            64,
            &["--database", "postgres://"],
        ),
    ];
    for (words, code, says) in tries {
        let mut command = latchwork();
        let output = command.arg("serve").args(words).output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(says.iter().all(|text| said.contains(text)), "{words:?}: {said}");
        assert!(!said.contains("hush") && !said.contains("token"), "{words:?}: {said}");
    }
    server.end();
}

/// What a command of ours prints, and its exit code.
fn run(words: &[&str], place: &LockDirectory) -> (String, String, Option<i32>) {
    let mut command = latchwork();
    command.args(words).arg("--data").arg(place.path("data"));
    let output = command.output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn tokens_are_made_on_the_database_and_used() {
    let place = LockDirectory::new();
    let (_, said, code) = run(&["tokens", "ls"], &place);
    assert_eq!(code, Some(69), "no database is made by a look: {said}");
    let (token, said, code) = run(&["tokens", "create", "me", "--role", "agent"], &place);
    assert_eq!(code, Some(0), "{said}");
    let token = token.trim();
    assert!(token.starts_with("lw_agent_") && !said.contains(token), "{said}");
    let (_, said, code) = run(&["tokens", "create", "me", "--role", "admin"], &place);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("me") && said.contains("revoke"), "{said}");

    let server = Server::start(&place);
    let lines = server.greeting.join("\n");
    assert!(lines.contains("for callers with a token"), "{lines}");
    for command in server.greeting.iter().filter(|line| line.starts_with("curl ")) {
        let command = command.replacen("curl ", "curl -sS --fail-with-body ", 1);
        let output = Command::new("sh")
            .args(["-c", &command])
            .env("LATCHWORK_TOKEN", token)
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let last = server.greeting.last().expect("a line").replacen("curl ", "curl -sS ", 1);
    let output = Command::new("sh").args(["-c", &last]).output().expect("a shell");
    assert!(String::from_utf8_lossy(&output.stdout).contains("unauthorized"), "{output:?}");

    let (listed, said, code) = run(&["tokens", "ls"], &place);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        listed.contains("me") && listed.contains("live") && !listed.contains(token),
        "{listed}"
    );
    let (_, said, code) = run(&["tokens", "revoke", "me"], &place);
    assert_eq!(code, Some(0), "{said}");
    let (listed, _, _) = run(&["tokens", "ls", "--all", "--json"], &place);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(listed["tokens"][0]["state"], "revoked");
    let (_, said, code) = run(&["tokens", "revoke", "me"], &place);
    assert_eq!(code, Some(64), "{said}");
    server.end();
}

#[test]
fn its_log_is_on_stderr_in_the_form_that_was_asked_for() {
    let place = LockDirectory::new();
    let words = ["--log", "latchwork_server=debug", "--log-format", "json"];
    let mut server = Server::start_with(&place, &words);
    let mut log = BufReader::new(server.child.stderr.take().expect("piped")).lines();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-m", "20", "-H", "X-Request-Id: mine"]);
    assert!(
        curl.arg(format!("{}/v1/orders", server.address()))
            .output()
            .expect("curl")
            .status
            .success()
    );
    let answered = log.by_ref().map(|line| line.expect("readable")).find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line).expect("each line is JSON");
        (line["message"] == "answered" && line["span"]["id"] == "mine").then_some(line)
    });
    let answered = answered.expect("it goes on");
    assert_eq!((&answered["level"], &answered["status"]), (&"DEBUG".into(), &200.into()));
    std::thread::spawn(move || log.for_each(drop));
    server.end();
}

#[test]
fn a_renewed_certificate_is_taken_at_sighup() {
    let place = LockDirectory::new();
    let (cert, key) = (place.path("cert.pem"), place.path("key.pem"));
    let renew = || {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        openssl.args(["-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout"]).arg(&key);
        let made = openssl.arg("-out").arg(&cert).output().expect("openssl is installed");
        assert!(made.status.success(), "{made:?}");
    };
    renew();
    let files = [&cert, &key].map(|path| path.display().to_string());
    let server = Server::start_with(&place, &["--tls-cert", &files[0], "--tls-key", &files[1]]);
    let trusts = |certificate: &std::path::Path| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "20", &format!("{}/healthz", server.address()), "--cacert"]);
        curl.arg(certificate).output().expect("curl is installed").status.success()
    };
    assert!(server.address().starts_with("https://") && trusts(&cert));
    let before = place.path("before.pem");
    std::fs::copy(&cert, &before).expect("copied");
    renew();
    assert!(trusts(&before) && !trusts(&cert));
    kill_process(Pid::from_child(&server.child), Signal::HUP).expect("it runs");
    eventually("new connections get the renewed certificate", || trusts(&cert));
    assert!(!trusts(&before));
    server.end();
}

#[test]
fn the_configuration_is_shown_with_where_it_is_from() {
    let place = LockDirectory::new();
    let file = place.path("my.toml");
    let text = "listen = \"127.0.0.1:9\"\ndatabase = \"postgres://me:hush@host/db\"\n";
    std::fs::write(&file, text).expect("written");
    let show = |more: &[&str]| {
        let mut command = latchwork();
        command.args(["config", "show", "--config"]).arg(&file).args(more);
        command.env("LATCHWORK_MAX_WAITING", "5");
        let output = command.output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (String::from_utf8_lossy(&output.stdout).into_owned(), said, output.status.code())
    };
    let (shown, said, code) = show(&["--listen", "127.0.0.1:10"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!shown.contains("hush"), "{shown}");
    for (key, value, source) in [
        ("listen", "127.0.0.1:10", "--listen"),
        ("database", "postgres://me:***@host/db", "my.toml:2"),
        ("limits.max_waiting", "5", "LATCHWORK_MAX_WAITING"),
        ("limits.max_wait_s", "60", "default"),
    ] {
        let line = shown.lines().find(|line| line.starts_with(key)).expect(key);
        assert!(line.contains(value) && line.contains(source), "{line}");
    }
    let (json, _, _) = show(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["settings"][0]["value"], "127.0.0.1:9");
    std::fs::write(&file, "listen = \"127.0.0.1:9\"\nlisten_adress = 1\n").expect("written");
    let (_, said, code) = show(&[]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("my.toml:2:") && said.contains("listen_adress"), "{said}");
}
