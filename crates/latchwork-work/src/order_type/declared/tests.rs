//! What a declaration may say, and what a mistake in one is told as.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::document::{Apply, Deadline, Parts, Retry, Review, Rule};
use super::split::{SharedLimit, Split};
use super::*;
use crate::{
    ApplyStep, DeadlinePolicy, Diff, FailurePolicy, OrderContent, OrderTypes, RegisteredType,
    TypeError,
};

struct Nothing;

impl super::super::Applier for Nothing {
    async fn apply(&self, _: &OrderContent, _: &mut ApplyStep) -> Result<Diff, TypeError> {
        Ok(Diff::empty())
    }
}

fn registered(text: &str) -> RegisteredType {
    let mut appliers = Appliers::new();
    appliers.add("publish", Nothing).expect("legal");
    let declared = DeclaredOrderType::parse("a.toml", text).expect("a declaration");
    let name = declared.name().to_owned();
    let mut types = OrderTypes::new();
    types.add_declared(declared, &appliers).expect("a type");
    types.get(&name).expect("it is there").clone()
}

/// The line, the field and the reason of a mistake.
fn mistake(text: &str) -> (usize, String, String) {
    let error = DeclaredOrderType::parse("dir/a.toml", text).expect_err("a mistake");
    told(&error)
}

fn told(error: &Error) -> (usize, String, String) {
    assert_eq!(error.code(), "invalid_declaration");
    let crate::ErrorKind::InvalidDeclaration { file, line, field, reason } = error.kind() else {
        panic!("{error}")
    };
    assert!(error.to_string().starts_with(&format!("{file}:{line}: ")), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    (*line, field.clone(), reason.clone())
}

const WHOLE: &str = r#"
name = "translation"
version = 3
priority = 5
lease_ttl = "1m"
max_leases = 8
max_payload_bytes = 1000
max_result_bytes = 2000
failure = { quorum = 2 }

[payload]
type = "object"
required = ["texts"]
properties.texts = { type = "array", items = { type = "string" } }

[result]
type = "object"
required = ["text"]

[split]
list = "/texts"
as = "text"
with = ["into"]

[concurrency]
field = "/into"
prefix = "into:"
limit = 3

[retry]
max_attempts = 7
backoff = "10s"

[parts]
required = ["title"]
schemas.title = { type = "string" }
schemas.body = '{"type": ["string", "null"]}'

[review]
approvals = 2
roles = { legal = 1 }
proposer_may_approve = true
exact_preview = true
deadline = { after = "2 days", then = { escalate = "lead" } }
auto_approve = { version = "v1", schema = { properties = { payload = { required = ["safe"] } } } }

[apply]
applier = "publish"
time_limit = "90s"
max_attempts = 2
"#;

#[tokio::test]
async fn w12_a_declaration_says_everything() {
    let known = registered(WHOLE);
    let settings = known.settings();
    assert_eq!((known.name(), known.version(), settings.priority), ("translation", 3, 5));
    assert_eq!(settings.lease_ttl, Duration::from_secs(60));
    assert_eq!(settings.heartbeat_every, Duration::from_secs(12), "a fifth of the lease");
    assert_eq!((settings.max_leases, settings.failure), (Some(8), FailurePolicy::Quorum(2)));
    assert_eq!((settings.max_payload_bytes, settings.max_result_bytes), (1_000, 2_000));
    assert_eq!((settings.retry.max_attempts, settings.retry.backoff.as_secs()), (7, 10));
    assert_eq!(settings.parts.required, ["title"]);
    assert_eq!(settings.parts.schemas["body"], json!({"type": ["string", "null"]}));
    assert_eq!((settings.review.approvals, settings.review.roles["legal"]), (2, 1));
    assert!(settings.review.proposer_may_approve && !settings.review.submitter_may_approve);
    assert!(settings.review.exact_preview);
    let deadline = settings.review.deadline.clone().expect("a deadline");
    assert_eq!(deadline.after, Duration::from_secs(2 * 86_400));
    assert_eq!(deadline.then, DeadlinePolicy::Escalate("lead".to_owned()));
    assert_eq!(settings.review.auto_approve.clone().expect("a rule").version, "v1");
    assert_eq!((settings.apply.time_limit.as_secs(), settings.apply.max_attempts), (90, 2));
    let plan = known.plan(&json!({"texts": ["a", "b"], "into": "de"})).await.expect("planned");
    let inputs: Vec<_> = plan.iter().map(|item| item.input.clone()).collect();
    assert_eq!(inputs, [json!({"text": "a", "into": "de"}), json!({"text": "b", "into": "de"})]);
    let limit = plan[0].concurrency.clone().expect("a limit");
    assert_eq!((limit.key.as_str(), limit.limit, limit.ordered), ("into:de", 3, false));
    let error = known.plan(&json!({"texts": [1]})).await.expect_err("no text");
    assert_eq!(error.code(), "payload_invalid");
    known.validate_submission(&json!({}), &json!({})).await.expect_err("no text");
    known.validate_part("title", &json!(1)).expect_err("no text");
}

#[tokio::test]
async fn w12_an_order_is_split_as_declared() {
    let plan = async |split: &str, payload: Value| {
        let known = registered(&format!("name = 'a'\n{split}"));
        let planned = known.plan(&payload).await;
        planned.map(|items| items.into_iter().map(|item| item.input).collect::<Vec<_>>())
    };
    let payload = json!({"a": {"list": [1, 2, 3, 4, 5]}, "into": "de"});
    assert_eq!(plan("", payload.clone()).await.expect("one item"), std::slice::from_ref(&payload));
    let each = plan("[split]\nlist = '/a/list'", payload.clone()).await.expect("five items");
    assert_eq!(each, [json!(1), json!(2), json!(3), json!(4), json!(5)]);
    let batches = "[split]\nlist = '/a/list'\nbatch = 2";
    let batches = plan(batches, payload.clone()).await.expect("three items");
    assert_eq!(batches, [json!([1, 2]), json!([3, 4]), json!([5])]);
    let named = "[split]\nlist = '/a/list'\nbatch = 4\nas = 'numbers'\nwith = ['into', 'none']";
    let named = plan(named, payload.clone()).await.expect("two items");
    let expected =
        [json!({"numbers": [1, 2, 3, 4], "into": "de"}), json!({"numbers": [5], "into": "de"})];
    assert_eq!(named, expected);
    let empty = plan("[split]\nlist = '/a/list'", json!({"a": {"list": []}})).await;
    assert_eq!(empty.expect_err("nothing to do").code(), "plan_empty");
    let none = plan("[split]\nlist = '/b'", payload).await.expect_err("no list");
    assert_eq!(none.code(), "payload_invalid");
    assert!(none.to_string().contains("/b: a list is expected"), "{none}");
}

#[tokio::test]
async fn w12_items_share_a_limit_by_a_field() {
    let known = registered("name = 'a'\n[concurrency]\nfield = '/repo'\nordered = true");
    let limit = async |payload: Value| {
        known.plan(&payload).await.map(|items| items[0].concurrency.clone().map(|limit| limit.key))
    };
    assert_eq!(limit(json!({"repo": "x"})).await.expect("planned").as_deref(), Some("x"));
    assert_eq!(limit(json!({"repo": 42})).await.expect("planned").as_deref(), Some("42"));
    assert_eq!(limit(json!({})).await.expect("planned"), None);
    for wrong in [json!({"repo": []}), json!({"repo": ""}), json!({"repo": "x".repeat(600)})] {
        assert_eq!(limit(wrong).await.expect_err("no key").code(), "payload_invalid");
    }
}

#[test]
fn w12_a_mistake_names_file_line_and_field() {
    let cases = [
        ("name = 'a'\n\nlease_tll = '5m'", 3, "lease_tll", "unknown field"),
        ("name = 'a'\nlease_ttl = 600", 2, "lease_ttl", "\"10m\""),
        ("name = 'a'\nlease_ttl = '5 parsecs'", 2, "lease_ttl", "5 parsecs"),
        ("name = 'a'\nlease_ttl = '900000 years'", 2, "lease_ttl", "ten years"),
        ("name = 'a'\nlease_ttl = '0s'", 2, "lease_ttl", "zero"),
        ("name = 'a'\nlease_ttl = '9s'\nheartbeat_every = '10s'", 3, "heartbeat_every", "shorter"),
        ("name = 'a b'", 1, "name", "not legal"),
        ("version = 1", 1, "", "missing field `name`"),
        ("name = 'a'\nname = 'b'", 2, "", "duplicate key"),
        ("name = 'a'\nversion = -1", 2, "version", "u32"),
        ("name = 'a'\n[review]\napprovals = 0", 3, "review.approvals", "zero"),
        ("name = 'a'\n\n[review]\napproval = 1", 4, "review.approval", "unknown field"),
        ("name = 'a'\n[review]\ndeadline = { after = 3 }", 3, "review.deadline.after", "duration"),
        ("name = 'a'\n[review.roles]\nlegal = 2", 2, "review.roles", "more approvals"),
        ("name = 'a'\nfailure = 'slow'", 2, "failure", "fail_fast"),
        ("name = 'a'\nfailure = { quorum = 0 }", 2, "failure", "zero"),
        ("name = 'a'\n[payload]\ntype = 'strin'", 2, "payload", "JSON Schema"),
        ("name = 'a'\n[payload]\ndefault = 2020-01-01", 2, "payload", "in quotes"),
        ("name = 'a'\n[payload]\nminimum = nan", 2, "payload", "NaN"),
        ("name = 'a'\npayload = '{'", 2, "payload", "no JSON"),
        ("name = 'a'\npayload = 3", 2, "payload", "a table"),
        ("name = 'a'\n[payload]\nlease_ttl = '5m'", 3, "payload.lease_ttl", "above the first"),
        ("name = 'a'\n[split]\nlist = 'texts'", 3, "split.list", "/texts"),
        ("name = 'a'\n[split]\nlist = '/a'\nbatch = 0", 4, "split.batch", "zero"),
        ("name = 'a'\n[split]\nlist = '/a'\nwith = ['b']", 4, "split.with", "split.as"),
        ("name = 'a'\n[split]\nbatch = 3", 2, "split", "missing field `list`"),
        ("name = 'a'\n[concurrency]\nfield = '/a'\nlimit = 0", 4, "concurrency.limit", "zero"),
        ("name = 'a'\n[retry]\nmax_attempts = 0", 3, "retry.max_attempts", "zero"),
        ("name = 'a'\n[retry]\nmax_attempts = 70000", 3, "retry.max_attempts", "u16"),
        ("name = 'a'\n[parts]\nrequired = ['x', 3]", 3, "parts.required.1", "string"),
        ("name = 'a'\n[parts.schemas]\nx = { type = 1 }", 3, "parts.schemas.x", "JSON Schema"),
        ("name = 'a'\n[apply]\ntime_limit = '0s'", 3, "apply.time_limit", "zero"),
        ("name = 'a'\n[apply]\ncommand = 'rm'", 3, "apply.command", "unknown field"),
        ("name = 'a'\n[locks]\nkeys = []", 2, "locks", "unknown field"),
        ("name = 'a", 1, "", ""),
        ("\0", 1, "", ""),
    ];
    for (text, line, field, reason) in cases {
        let found = mistake(text);
        assert_eq!((found.0, found.1.as_str()), (line, field), "{text}: {found:?}");
        assert!(found.2.contains(reason), "{text}: {found:?}");
    }
}

#[test]
fn w12_an_applier_that_is_not_there_is_named() {
    let text = "name = 'a'\n[apply]\napplier = 'publish'";
    let declared = || DeclaredOrderType::parse("a.toml", text).expect("a declaration");
    let error = OrderTypes::new().add_declared(declared(), &Appliers::new()).map(drop);
    let (line, field, reason) = told(&error.expect_err("none"));
    assert_eq!((line, field.as_str()), (3, "apply.applier"));
    assert!(reason.contains("publish") && reason.contains("none"), "{reason}");
    let mut appliers = Appliers::new();
    appliers.add("publish", Nothing).expect("legal");
    assert_eq!(
        appliers.add("publish", Nothing).map(drop).expect_err("taken").code(),
        "invalid_argument"
    );
    assert_eq!(
        appliers.add("a b", Nothing).map(drop).expect_err("illegal").code(),
        "invalid_argument"
    );
    let mut types = OrderTypes::new();
    types.add_declared(declared(), &appliers).expect("a type");
    let error = types.add_declared(declared(), &appliers).map(drop).expect_err("taken");
    assert_eq!(told(&error).1, "name");
}

#[test]
fn w12_a_file_that_cannot_be_read_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.toml");
    let error = DeclaredOrderType::read(&path).expect_err("none");
    assert!(error.to_string().contains("a.toml") && error.to_string().contains("cannot be read"));
    std::fs::write(&path, "#".repeat(2 << 20)).expect("written");
    assert!(told(&DeclaredOrderType::read(&path).expect_err("large")).2.contains("larger"));
    std::fs::write(&path, [0xff, 0xfe]).expect("written");
    assert!(told(&DeclaredOrderType::read(&path).expect_err("no text")).2.contains("UTF-8"));
    std::fs::write(&path, WHOLE).expect("written");
    assert_eq!(DeclaredOrderType::read(&path).expect("a declaration").applier(), Some("publish"));
}

fn time() -> impl Strategy<Value = DurationText> {
    (1..300_000_000_u64, 0..1_000_000_000_u32)
        .prop_map(|(secs, nanos)| DurationText(Duration::new(secs, nanos)))
}

fn schema() -> impl Strategy<Value = SchemaText> {
    let example = prop_oneof![
        Just(json!(null)),
        Just(json!(1.5)),
        Just(json!(u64::MAX)),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
    ];
    let keyword = prop::collection::hash_map("[a-zA-Z\" .é-]{1,8}", example, 0..4);
    prop_oneof![
        Just(SchemaText(json!(true))),
        (keyword, any::<bool>()).prop_map(|(properties, list)| {
            let properties: serde_json::Map<_, _> = properties
                .into_iter()
                .map(|(name, example)| (name, json!({"const": example})))
                .collect();
            let schema = json!({"type": "object", "properties": properties});
            SchemaText(if list { json!({"type": "array", "items": schema}) } else { schema })
        }),
    ]
}

fn some<T: std::fmt::Debug + Clone + 'static>(
    strategy: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<T>> {
    prop::option::of(strategy).boxed()
}

fn document() -> impl Strategy<Value = Document> {
    let split = (
        "(/[a-z~\"]{0,4}){0,3}",
        prop::option::of(1..100_u32),
        prop::option::of(("[a-y]{1,4}", prop::collection::vec("z[a-z\"é]{0,4}", 0..3))),
    )
        .prop_map(|(list, batch, named)| {
            let (field, with) =
                named.map_or((None, Vec::new()), |(field, with)| (Some(field), with));
            Split { list, batch, field, with }
        });
    let shared = ("/[a-z]{0,4}", "[a-z:]{0,4}", 1..9_u32, any::<bool>()).prop_map(
        |(field, prefix, limit, ordered)| {
            let limit = if ordered { 1 } else { limit };
            SharedLimit { field, prefix, limit, ordered }
        },
    );
    let retry = (some(1..99_u16), some(time()), some(time()), some(time())).prop_map(
        |(max_attempts, backoff, max_backoff, jitter)| Retry {
            max_attempts,
            backoff,
            max_backoff,
            jitter,
        },
    );
    let schemas = prop::collection::btree_map("[a-z. \"]{1,5}", schema(), 0..3);
    let required = prop::collection::vec(".{1,5}", 0..3);
    let parts = (some(required), some(schemas), some(3..99_u32), some(0..u32::MAX)).prop_map(
        |(required, schemas, max_parts, max_total_bytes)| Parts {
            required,
            schemas,
            max_parts,
            max_part_bytes: max_total_bytes.map(|bytes| bytes / 2),
            max_total_bytes,
        },
    );
    let then = prop_oneof![
        Just(DeadlinePolicy::KeepWaiting),
        Just(DeadlinePolicy::Reject),
        ".{1,5}".prop_map(DeadlinePolicy::Escalate),
    ];
    let deadline = (time(), then).prop_map(|(after, then)| Deadline { after, then });
    let rule = (any::<String>(), schema()).prop_map(|(version, schema)| Rule { version, schema });
    let roles = prop::collection::btree_map(".{1,5}", 1..5_u32, 0..3);
    let review = (some(5..9_u32), some(roles), some(any::<bool>()), some(deadline), some(rule))
        .prop_map(|(approvals, roles, flag, deadline, auto_approve)| Review {
            roles: roles.map(|roles: BTreeMap<_, _>| match approvals {
                Some(_) => roles,
                None => roles.into_keys().map(|role| (role, 1)).collect(),
            }),
            approvals,
            proposer_may_approve: flag,
            submitter_may_approve: flag,
            exact_preview: flag,
            deadline,
            auto_approve,
            max_diff_bytes: approvals,
        });
    let apply = (some("[a-z.-]{1,9}"), some(time()), some(time()), some(1..99_u32)).prop_map(
        |(applier, lease_ttl, time_limit, max_attempts)| Apply {
            applier,
            lease_ttl,
            time_limit,
            max_attempts,
        },
    );
    let failure = prop_oneof![
        Just(FailurePolicy::FailFast),
        Just(FailurePolicy::BestEffort),
        (1..99_u32).prop_map(FailurePolicy::Quorum),
    ];
    let plain = (
        "[a-zA-Z0-9._-]{1,30}",
        any::<u32>(),
        some(any::<i32>()),
        some(time()),
        some(1..99_u32),
        some(any::<u32>()),
        some(failure),
    );
    let schemas = (some(schema()), some(schema()), some(schema()));
    let tables = (some(split), some(shared), some(retry), some(parts), some(review), some(apply));
    (plain, schemas, tables).prop_map(|(plain, schemas, tables)| Document {
        name: plain.0,
        version: plain.1,
        priority: plain.2,
        lease_ttl: plain.3,
        heartbeat_every: plain.3.map(|time| DurationText(time.0 / 2)),
        max_leases: plain.4,
        max_payload_bytes: plain.5,
        max_result_bytes: plain.5,
        failure: plain.6,
        payload: schemas.0,
        input: schemas.1,
        result: schemas.2,
        split: tables.0,
        concurrency: tables.1,
        retry: tables.2,
        parts: tables.3,
        review: tables.4,
        apply: tables.5,
    })
}

/// Text that is nearly a declaration.
fn nearly() -> impl Strategy<Value = String> {
    let cut = (0..WHOLE.len(), 0..40_usize, ".{0,6}");
    cut.prop_map(|(from, length, instead)| {
        let to = (from + length).min(WHOLE.len());
        format!("{}{instead}{}", &WHOLE[..from], &WHOLE[to..])
    })
}

proptest! {
    #[test]
    fn w12_any_declaration_is_read_as_it_was_written(document in document()) {
        let text = toml::to_string(&document).expect("TOML");
        let read = DeclaredOrderType::parse("a.toml", &text);
        let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
        prop_assert_eq!(&read.document, &document, "{}", text);
        prop_assert_eq!(read.to_toml(), text);
    }

    #[test]
    fn w12_no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = DeclaredOrderType::parse("a.toml", &text) {
            told(&error);
        }
    }

    #[test]
    fn w12_a_damaged_declaration_is_told_or_read(text in nearly()) {
        match DeclaredOrderType::parse("a.toml", &text) {
            Ok(declared) => prop_assert!(!declared.name().is_empty()),
            Err(error) => drop(told(&error)),
        }
    }
}
