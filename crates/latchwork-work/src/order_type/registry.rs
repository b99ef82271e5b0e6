//! The types that a manager knows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::schema::Schema;
use super::typed::Typed;
use super::{
    Appliers, ApplyStep, DeclaredOrderType, DynOrderType, DynamicOrderType, OrderContent,
    OrderType, PlannedItem, TypeError, TypeSettings, Violation,
};
use crate::{Diff, Error, ErrorKind, FailurePolicy, Result};

/// The longest name of a type, in bytes.
const MAX_NAME: usize = 120;

/// So many items one order may have.
const MAX_ITEMS: usize = 100_000;

/// The order types that a manager knows, by name.
#[derive(Clone, Default)]
pub struct OrderTypes {
    types: BTreeMap<String, RegisteredType>,
}

/// One order type with its schemas, ready to use.
#[derive(Clone)]
pub struct RegisteredType(Arc<Inner>);

struct Inner {
    name: String,
    version: u32,
    settings: TypeSettings,
    payload: Schema,
    input: Schema,
    result: Schema,
    parts: BTreeMap<String, Schema>,
    rule: Option<Schema>,
    order_type: Box<dyn DynOrderType>,
}

impl OrderTypes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a type.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an illegal name, one that is taken, illegal
    /// settings, or a schema that is none.
    pub fn add(&mut self, order_type: impl OrderType) -> Result<&mut Self> {
        self.register(Box::new(Typed(order_type)))
    }

    /// Adds a type whose schemas are data.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_dynamic(&mut self, order_type: DynamicOrderType) -> Result<&mut Self> {
        self.register(Box::new(order_type))
    }

    /// Adds a type that was declared in a file, with the applier that it names.
    ///
    /// # Errors
    /// [`InvalidDeclaration`](ErrorKind::InvalidDeclaration) with file, line and field: its name is
    /// taken, or there is no such applier.
    pub fn add_declared(
        &mut self,
        declared: DeclaredOrderType,
        appliers: &Appliers,
    ) -> Result<&mut Self> {
        if self.types.contains_key(declared.name()) {
            return Err(
                declared.wrong("name", format!("there is already a type {:?}", declared.name()))
            );
        }
        self.add_dynamic(declared.order_type(appliers)?)
    }

    /// A type by its name.
    ///
    /// # Errors
    /// [`OrderTypeNotFound`](ErrorKind::OrderTypeNotFound), which lists the types that there are.
    pub fn get(&self, name: &str) -> Result<&RegisteredType> {
        self.types.get(name).ok_or_else(|| {
            let known = self.types.keys().cloned().collect();
            ErrorKind::OrderTypeNotFound { name: name.to_owned(), known }.into()
        })
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &RegisteredType> {
        self.types.values()
    }

    fn register(&mut self, order_type: Box<dyn DynOrderType>) -> Result<&mut Self> {
        let name = order_type.name().to_owned();
        legal_name(&name).map_err(wrong)?;
        if self.types.contains_key(&name) {
            return Err(wrong(format!("there is already a type {name:?}")));
        }
        let settings = order_type.settings();
        check(&name, &settings)?;
        let schema = |what: &str, document: Value| {
            Schema::new(document)
                .map_err(|reason| wrong(format!("the {what} schema of {name:?} is none: {reason}")))
        };
        let mut parts = BTreeMap::new();
        for (key, document) in &settings.parts.schemas {
            parts.insert(key.clone(), schema(&format!("part {key:?}"), document.clone())?);
        }
        let rule = settings.review.auto_approve.as_ref().and_then(|rule| rule.schema.clone());
        let rule = rule.map(|rule| schema("auto_approve", rule)).transpose()?;
        let inner = Inner {
            parts,
            version: order_type.version(),
            settings,
            payload: schema("payload", order_type.payload_schema())?,
            input: schema("input", order_type.input_schema())?,
            result: schema("result", order_type.result_schema())?,
            rule,
            name: name.clone(),
            order_type,
        };
        self.types.insert(name, RegisteredType(Arc::new(inner)));
        Ok(self)
    }
}

/// Whether an order type or an applier may have this name; the error says why not.
pub(super) fn legal_name(name: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(legal) {
        true => Ok(()),
        false => Err(format!(
            "the name {name:?} is not legal: letters, digits, `.`, `_` and `-`, at most {MAX_NAME} bytes"
        )),
    }
}

fn check(name: &str, settings: &TypeSettings) -> Result<()> {
    match problem(settings) {
        Some((field, reason)) => Err(wrong(format!("the settings of {name:?}: {field} {reason}"))),
        None => Ok(()),
    }
}

/// The longest time in settings: what is added to the time of the database must stay a time.
const MAX_TIME: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What is wrong with settings: the field, and why.
pub(super) fn problem(settings: &TypeSettings) -> Option<(&'static str, &'static str)> {
    let TypeSettings { retry, parts, review, apply, .. } = settings;
    let times = [
        ("lease_ttl", settings.lease_ttl),
        ("heartbeat_every", settings.heartbeat_every),
        ("retry.backoff", retry.backoff),
        ("retry.max_backoff", retry.max_backoff),
        ("retry.jitter", retry.jitter),
        ("review.deadline", review.deadline.as_ref().map_or(Duration::ZERO, |due| due.after)),
        ("apply.lease_ttl", apply.lease_ttl),
        ("apply.time_limit", apply.time_limit),
        ("apply.cleanup.backoff", apply.cleanup.backoff),
        ("apply.cleanup.max_backoff", apply.cleanup.max_backoff),
        ("apply.cleanup.jitter", apply.cleanup.jitter),
    ];
    if let Some((field, _)) = times.into_iter().find(|(_, time)| *time > MAX_TIME) {
        Some((field, "is longer than ten years"))
    } else if settings.lease_ttl.is_zero() {
        Some(("lease_ttl", "is zero: an item could never be submitted"))
    } else if settings.heartbeat_every >= settings.lease_ttl {
        Some(("heartbeat_every", "must be shorter than lease_ttl, or every lease runs out"))
    } else if retry.max_attempts == 0 {
        Some(("retry.max_attempts", "is zero: an item could never be leased"))
    } else if settings.max_leases == Some(0) {
        Some(("max_leases", "is zero: an item could never be leased"))
    } else if settings.failure == FailurePolicy::Quorum(0) {
        Some(("failure", "is a quorum of zero; best_effort needs one item that succeeds"))
    } else if parts.required.len() > parts.max_parts as usize {
        Some(("parts.required", "names more parts than parts.max_parts allows"))
    } else {
        super::review::problem(review, apply)
    }
}

fn wrong(reason: String) -> Error {
    ErrorKind::InvalidArgument { name: "order type", reason }.into()
}

impl RegisteredType {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The version of its schemas.
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// How its orders are run.
    pub fn settings(&self) -> &TypeSettings {
        &self.0.settings
    }

    /// The JSON Schema of payloads.
    pub fn payload_schema(&self) -> &Value {
        self.0.payload.document()
    }

    /// The JSON Schema of the items' inputs.
    pub fn input_schema(&self) -> &Value {
        self.0.input.document()
    }

    /// The JSON Schema of results.
    pub fn result_schema(&self) -> &Value {
        self.0.result.document()
    }

    /// Checks a payload and splits it into items, whose inputs are checked too.
    ///
    /// # Errors
    /// [`PayloadInvalid`](ErrorKind::PayloadInvalid) with every violation,
    /// [`TooLarge`](ErrorKind::TooLarge), [`PlanEmpty`](ErrorKind::PlanEmpty),
    /// [`OrderTypeFailed`](ErrorKind::OrderTypeFailed).
    pub async fn plan(&self, payload: &Value) -> Result<Vec<PlannedItem<Value>>> {
        let refused = |error| self.refuse("payload", error);
        limit("payload", payload, self.settings().max_payload_bytes)?;
        self.0.payload.check(payload).map_err(refused)?;
        let items = self.0.order_type.plan(payload).await.map_err(refused)?;
        if items.is_empty() {
            return Err(ErrorKind::PlanEmpty { order_type: self.name().to_owned() }.into());
        }
        if items.len() > MAX_ITEMS {
            let reason = format!("the plan has {} items, and {MAX_ITEMS} are allowed", items.len());
            return Err(self.failed("planning", reason.into()));
        }
        for (number, item) in items.iter().enumerate() {
            let wrong = |reason: String| {
                self.failed("planning", format!("item {number} of the plan: {reason}").into())
            };
            self.0.input.check(&item.input).map_err(|error| wrong(error.to_string()))?;
            limit("input", &item.input, self.settings().max_payload_bytes)?;
            if item.max_attempts == Some(0) {
                return Err(wrong("max_attempts is zero".to_owned()));
            }
            if let Some(concurrency) = &item.concurrency {
                if concurrency.limit == 0 {
                    return Err(wrong(format!("the limit on {:?} is zero", concurrency.key)));
                }
                latchwork_lock::Key::new(concurrency.key.as_str())
                    .map_err(|error| wrong(format!("its concurrency key: {error}")))?;
            }
        }
        Ok(items)
    }

    /// Checks a result: size, schema, and the type's own code.
    ///
    /// # Errors
    /// [`ResultInvalid`](ErrorKind::ResultInvalid) with every violation,
    /// [`TooLarge`](ErrorKind::TooLarge), [`OrderTypeFailed`](ErrorKind::OrderTypeFailed).
    pub async fn validate_submission(&self, input: &Value, result: &Value) -> Result<()> {
        let refused = |error| self.refuse("result", error);
        limit("result", result, self.settings().max_result_bytes)?;
        self.0.result.check(result).map_err(refused)?;
        self.0.order_type.validate_submission(input, result).await.map_err(refused)
    }

    /// Checks what is known of a draft: its size and its key.
    pub(crate) fn check_draft(&self, key: &str, part: &Value) -> Result<()> {
        limit("part", part, self.settings().parts.max_part_bytes)?;
        let known = &self.settings().parts;
        if known.takes(key) {
            return Ok(());
        }
        let keys: Vec<_> = known.schemas.keys().chain(&known.required).cloned().collect();
        let message = format!("the type has no such part; it has {}", keys.join(", "));
        let violation =
            Violation { field: String::new(), code: "unknown_part".to_owned(), message };
        Err(self.refuse_part(key, vec![violation]))
    }

    /// Checks a part of a result: its size, its key, and the schema of its key.
    ///
    /// # Errors
    /// [`PartInvalid`](ErrorKind::PartInvalid) with every violation,
    /// [`TooLarge`](ErrorKind::TooLarge).
    pub fn validate_part(&self, key: &str, part: &Value) -> Result<()> {
        self.check_draft(key, part)?;
        let checked = self.0.parts.get(key).map_or(Ok(()), |schema| schema.check(part));
        checked.map_err(|error| match error {
            TypeError::Invalid { violations } => self.refuse_part(key, violations),
            error => self.refuse("part", error),
        })
    }

    fn refuse_part(&self, key: &str, violations: Vec<Violation>) -> Error {
        let (order_type, key) = (self.name().to_owned(), key.to_owned());
        ErrorKind::PartInvalid { order_type, key, violations }.into()
    }

    /// Whether an order may be approved, by the type's own rule.
    ///
    /// # Errors
    /// [`NotReady`](ErrorKind::NotReady) with everything that is missing,
    /// [`OrderTypeFailed`](ErrorKind::OrderTypeFailed).
    pub async fn can_approve(&self, order: &OrderContent) -> Result<()> {
        self.0.order_type.can_approve(order).await.map_err(|error| match error {
            TypeError::Invalid { violations } => ErrorKind::NotReady { violations }.into(),
            TypeError::Failed(source) => self.failed("judging readiness", source),
        })
    }

    /// What apply would change; none where the type has no preview.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge), [`OrderTypeFailed`](ErrorKind::OrderTypeFailed).
    pub async fn preview(&self, order: &OrderContent) -> Result<Option<Diff>> {
        let made = self.0.order_type.preview(order).await;
        let preview = made.map_err(|error| self.failed("previewing", error.into()))?;
        if let Some(preview) = &preview {
            let value = serde_json::to_value(preview)
                .map_err(|error| self.failed("previewing", error.into()))?;
            limit("preview", &value, self.settings().review.max_diff_bytes)?;
        }
        Ok(preview)
    }

    /// The version of the rule that approves an order without a reviewer, if one does.
    ///
    /// # Errors
    /// [`OrderTypeFailed`](ErrorKind::OrderTypeFailed).
    pub async fn auto_approve(&self, order: &OrderContent) -> Result<Option<String>> {
        let Some(rule) = &self.settings().review.auto_approve else { return Ok(None) };
        let accepted = match &self.0.rule {
            Some(schema) => schema.check(&order.judged()).is_ok(),
            None => false,
        };
        let judged = match accepted {
            true => Ok(true),
            false => self.0.order_type.auto_approve(order).await,
        };
        let judged = judged.map_err(|error| self.failed("auto_approve", error.into()))?;
        Ok(judged.then(|| rule.version.clone()))
    }

    pub(crate) async fn before_apply(
        &self,
        order: &OrderContent,
        step: &ApplyStep,
    ) -> Result<(), TypeError> {
        self.0.order_type.before_apply(order, step).await
    }

    pub(crate) async fn apply(
        &self,
        order: &OrderContent,
        step: &mut ApplyStep,
    ) -> Result<Diff, TypeError> {
        self.0.order_type.apply(order, step).await
    }

    pub(crate) async fn after_apply(
        &self,
        order: &OrderContent,
        diff: &Diff,
        step: &ApplyStep,
    ) -> Result<(), TypeError> {
        self.0.order_type.after_apply(order, diff, step).await
    }

    fn refuse(&self, what: &'static str, error: TypeError) -> Error {
        let order_type = self.name().to_owned();
        match (what, error) {
            ("payload", TypeError::Invalid { violations }) => {
                ErrorKind::PayloadInvalid { order_type, violations }.into()
            }
            (_, TypeError::Invalid { violations }) => {
                ErrorKind::ResultInvalid { order_type, violations }.into()
            }
            (_, TypeError::Failed(source)) => self.failed("judging", source),
        }
    }

    fn failed(
        &self,
        during: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> Error {
        ErrorKind::OrderTypeFailed { order_type: self.name().to_owned(), during, source }.into()
    }
}

/// Refuses a document that is larger.
pub(crate) fn limit(what: &'static str, value: &Value, limit: usize) -> Result<()> {
    let mut count = Count { bytes: 0, limit };
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => Ok(()),
        Err(_) => Err(ErrorKind::TooLarge { what, limit }.into()),
    }
}

/// Counts bytes up to a limit, so that a large document is not written out to be measured.
struct Count {
    bytes: usize,
    limit: usize,
}

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes += bytes.len();
        if self.bytes > self.limit {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for RegisteredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredType({} v{})", self.name(), self.version())
    }
}

impl fmt::Debug for OrderTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn numbers() -> DynamicOrderType {
        let schema = json!({"type": "object", "required": ["numbers"],
            "properties": {"numbers": {"type": "array", "items": {"type": "integer", "minimum": 0}}}});
        DynamicOrderType::new("numbers")
            .payload_schema(schema)
            .input_schema(json!({"type": "integer"}))
            .result_schema(json!({"type": "object", "required": ["square"]}))
            .plan(|payload| {
                let numbers = payload["numbers"].as_array().cloned().unwrap_or_default();
                Ok(numbers.into_iter().map(PlannedItem::new).collect())
            })
            .validate_submission(|input, result| {
                let (number, square) = (input.as_i64(), result["square"].as_i64());
                if number.map(|n| n * n) == square {
                    return Ok(());
                }
                Err(TypeError::invalid("/square", "wrong_square", "it is not the square"))
            })
    }

    fn registered(order_type: DynamicOrderType) -> RegisteredType {
        let name = order_type.name().to_owned();
        let mut types = OrderTypes::new();
        types.add_dynamic(order_type).expect("legal");
        types.get(&name).expect("just added").clone()
    }

    #[tokio::test]
    async fn w06_every_violation_is_told_with_its_path() {
        let numbers = registered(numbers());
        let error = numbers.plan(&json!({"numbers": [1, "x", -2]})).await.expect_err("wrong");
        assert_eq!(error.code(), "payload_invalid");
        let ErrorKind::PayloadInvalid { violations, .. } = error.kind() else { panic!("{error}") };
        let told: Vec<_> = violations.iter().map(|v| (v.field.as_str(), v.code.as_str())).collect();
        assert_eq!(told, [("/numbers/1", "type"), ("/numbers/2", "minimum")]);
        let error = numbers.plan(&json!({})).await.expect_err("wrong");
        assert!(error.to_string().contains("numbers"), "{error}");
    }

    #[tokio::test]
    async fn w06_a_result_is_checked_by_schema_and_then_by_code() {
        let numbers = registered(numbers());
        numbers.validate_submission(&json!(3), &json!({"square": 9})).await.expect("right");
        let error = numbers.validate_submission(&json!(3), &json!({})).await.expect_err("schema");
        assert_eq!(error.code(), "result_invalid");
        let wrong = json!({"square": 8});
        let error = numbers.validate_submission(&json!(3), &wrong).await.expect_err("code");
        let ErrorKind::ResultInvalid { violations, .. } = error.kind() else { panic!("{error}") };
        assert_eq!(violations[0].code, "wrong_square");
    }

    #[tokio::test]
    async fn w05_a_plan_without_items_is_refused() {
        let error = registered(numbers()).plan(&json!({"numbers": []})).await.expect_err("empty");
        assert_eq!(error.code(), "plan_empty");
    }

    #[tokio::test]
    async fn w06_what_is_too_large_is_refused() {
        let settings =
            TypeSettings { max_payload_bytes: 20, max_result_bytes: 5, ..Default::default() };
        let small = registered(numbers().settings(settings));
        let error = small.plan(&json!({"numbers": [1, 2, 3, 4, 5, 6]})).await.expect_err("large");
        assert_eq!(error.code(), "too_large");
        let result = json!({"square": 9});
        let error = small.validate_submission(&json!(3), &result).await.expect_err("large");
        assert_eq!(error.code(), "too_large");
    }

    #[tokio::test]
    async fn an_item_of_a_plan_is_checked_too() {
        let wrong = numbers().plan(|_| Ok(vec![PlannedItem::new(json!("x"))]));
        let error = registered(wrong).plan(&json!({"numbers": [1]})).await.expect_err("wrong");
        assert_eq!(error.code(), "order_type_failed");
        let limit = numbers().plan(|_| Ok(vec![PlannedItem::new(json!(1)).concurrency("a", 0)]));
        let error = registered(limit).plan(&json!({"numbers": [1]})).await.expect_err("zero");
        assert!(error.to_string().contains("limit"), "{error}");
    }

    #[test]
    fn a_type_that_does_not_hold_together_is_refused() {
        let refused = |order_type| {
            let error = OrderTypes::new().add_dynamic(order_type).map(drop).expect_err("refused");
            assert_eq!(error.code(), "invalid_argument");
            error.to_string()
        };
        assert!(refused(DynamicOrderType::new("a b")).contains("name"));
        let schema = DynamicOrderType::new("a").payload_schema(json!({"type": "strin"}));
        assert!(refused(schema).contains("payload schema"));
        let settings = TypeSettings {
            heartbeat_every: std::time::Duration::from_secs(600),
            ..Default::default()
        };
        assert!(refused(DynamicOrderType::new("a").settings(settings)).contains("heartbeat"));
        let mut types = OrderTypes::new();
        types.add_dynamic(DynamicOrderType::new("a")).expect("the first");
        let error = types.add_dynamic(DynamicOrderType::new("a")).map(drop).expect_err("taken");
        assert!(error.to_string().contains("already"), "{error}");
        let error = types.get("b").expect_err("unknown");
        assert_eq!(error.code(), "order_type_not_found");
        assert!(error.to_string().contains('a'), "{error}");
    }
}
