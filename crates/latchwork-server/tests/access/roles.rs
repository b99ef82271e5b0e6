//! Every route × every role, against the committed table.

use std::fmt::Write as _;

use latchwork_server::Role;
use serde_json::{Value, json};

use crate::support::Fixture;

/// One line a route: method, path, and the roles that may use it; `open` for everybody.
const TABLE: &str = include_str!("routes.txt");

#[tokio::test]
async fn every_route_takes_the_roles_of_the_table_and_no_other() {
    let f = Fixture::new().await;
    let mut tokens = Vec::new();
    for role in Role::ALL {
        tokens.push((role, f.plain(role.as_str(), role).await));
    }
    let mut found = String::new();
    for (method, path) in routes() {
        let called = path
            .replace("{name}", "red")
            .replace("{id}", "00000000-0000-0000-0000-000000000000")
            .replace(['{', '}'], "");
        let without = f.call(&method, &called, "", Value::Null).await;
        let _ = write!(found, "{method} {path}");
        if without.status != 401 {
            assert!(without.status.as_u16() < 500, "{method} {path}: {}", without.text);
            found.push_str(" open");
        }
        for (role, token) in &tokens {
            // Without a body: what a role may not do is refused before anything is read.
            let answer = f.call(&method, &called, token, Value::Null).await;
            assert!(answer.status.as_u16() < 500, "{role} {method} {path}: {}", answer.text);
            assert_ne!(answer.status, 401, "{role} {method} {path}");
            let role_refused =
                answer.status == 403 && answer.text.contains("the token's role may not do this");
            if without.status == 401 && !role_refused {
                let _ = write!(found, " {role}");
            }
        }
        found.push('\n');
    }
    assert!(
        found == TABLE,
        "tests/access/routes.txt should be, if this is what you want:\n{found}"
    );
}

/// The routes of the API, and the two that describe it.
pub(crate) fn routes() -> Vec<(String, String)> {
    let api = json!(latchwork_server::openapi());
    let mut routes = Vec::new();
    for (path, methods) in api["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            routes.push((method.to_uppercase(), path.clone()));
        }
    }
    routes.extend(["/docs", "/openapi.json"].map(|path| ("GET".to_owned(), path.to_owned())));
    routes.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    routes
}
