//! A command as an applier: JSON on stdin, a diff on stdout.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork_work::{
    Applier, Appliers, ApplyStep, Change, DeclarationFile, Diff, DurationText, OrderContent,
    TypeError,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::process::{Output, Process, readable};

/// An applier that starts a command of the operator.
///
/// The command gets one JSON document on stdin: `action` (`apply` or `preview`), `idempotency_key`, `fence`
/// and `attempt` (of an apply), `order`, `payload`, `items` with their results, and `failed`. It prints a diff:
/// `{"before": …, "after": …, "summary": "…"}`, where `changes` (RFC 6902) are made from the other two
/// unless they are given. It exits with 0.
///
/// It runs in a process group of its own, which is killed as a whole when the command ends, takes too long,
/// prints too much, or its apply lease is lost. A server that is itself killed leaves it running: the
/// next worker then has a higher fence, and the command must refuse the lower one where it matters.
#[derive(Clone)]
pub struct CommandApplier {
    apply: Process,
    preview: Option<Process>,
}

/// One command in the operator's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    command: Vec<String>,
    #[serde(default)]
    preview: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    pass_env: Vec<String>,
    #[serde(default)]
    directory: Option<PathBuf>,
    #[serde(default)]
    time_limit: Option<DurationText>,
    #[serde(default)]
    max_output_bytes: Option<u32>,
}

const TIME_LIMIT: Duration = Duration::from_secs(60);
const MAX_TIME_LIMIT: Duration = Duration::from_secs(7 * 86_400);
const MAX_OUTPUT: u32 = 1 << 20;

impl CommandApplier {
    /// The commands of a file, by their names.
    ///
    /// ```toml
    /// [publish]
    /// command = ["./publish.py"]               # beside the file, or by PATH
    /// preview = ["./publish.py", "--preview"]  # what it would change, if it can tell
    /// env = { TARGET = "/srv/site" }           # all of its environment, with
    /// pass_env = ["PATH"]                      # these variables of the server
    /// directory = "."                          # where it runs; that of the file unless told
    /// time_limit = "60s"
    /// max_output_bytes = 1048576
    /// ```
    ///
    /// # Errors
    /// [`InvalidDeclaration`](latchwork_work::ErrorKind::InvalidDeclaration) with file, line and field.
    pub fn read(path: &Path) -> latchwork_work::Result<Appliers> {
        let file = DeclarationFile::open(path)?;
        let beside = path.parent().unwrap_or(Path::new(""));
        let beside = std::path::absolute(beside).unwrap_or_else(|_| beside.to_owned());
        let mut appliers = Appliers::new();
        for (name, declared) in file.read::<BTreeMap<String, Declared>>()? {
            let applier = declared
                .applier(&beside)
                .map_err(|(field, reason)| file.mistake(&format!("{name}.{field}"), reason))?;
            let added = appliers.add(name.as_str(), applier).map(drop);
            added.map_err(|error| file.mistake(&name, error.to_string()))?;
        }
        Ok(appliers)
    }
}

impl Declared {
    fn applier(self, beside: &Path) -> Result<CommandApplier, (&'static str, String)> {
        let mut environment: Vec<_> = self.env.into_iter().collect();
        if environment.iter().any(|(name, value)| {
            name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
        }) {
            return Err(("env", "a name is empty or has a `=`, or there is a NUL".to_owned()));
        }
        for name in self.pass_env {
            match env::var(&name) {
                Ok(value) if !name.is_empty() => environment.push((name, value)),
                _ => return Err(("pass_env", format!("the server has no variable {name:?}"))),
            }
        }
        let directory = self.directory.map_or(beside.to_owned(), |told| beside.join(told));
        if !directory.is_dir() {
            let reason = format!("{} is no directory", directory.display());
            return Err(("directory", reason));
        }
        let time_limit = self.time_limit.map_or(TIME_LIMIT, |limit| limit.0);
        if time_limit.is_zero() || time_limit > MAX_TIME_LIMIT {
            return Err((
                "time_limit",
                "it is more than nothing and at most seven days".to_owned(),
            ));
        }
        let max_output = self.max_output_bytes.unwrap_or(MAX_OUTPUT);
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        let path = path.cloned().or_else(|| env::var("PATH").ok()).unwrap_or_default();
        let process = |field: &'static str, argv: Vec<String>| {
            if argv.iter().any(|argument| argument.contains('\0')) {
                return Err((field, "there is a NUL in it".to_owned()));
            }
            let mut arguments = argv.into_iter();
            let name = arguments.next().filter(|name| !name.is_empty());
            let name = name.ok_or((field, "it names no program".to_owned()))?;
            Ok(Process {
                program: find(&name, beside, &path).map_err(|reason| (field, reason))?,
                arguments: arguments.collect(),
                directory: directory.clone(),
                environment: environment.clone(),
                time_limit,
                max_output: usize::try_from(max_output).unwrap_or(usize::MAX),
            })
        };
        let preview = self.preview.map(|argv| process("preview", argv)).transpose()?;
        Ok(CommandApplier { apply: process("command", self.command)?, preview })
    }
}

/// The program's file: beside the operator's file where the name has a slash, else by PATH. Found when the
/// file is read, so that a mistake is told at the start and a later PATH changes nothing.
fn find(name: &str, beside: &Path, path: &str) -> Result<PathBuf, String> {
    let executable = |file: &Path| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        let file = beside.join(name);
        return match executable(&file) {
            true => Ok(file),
            false => Err(format!("{} is no executable file", file.display())),
        };
    }
    let mut candidates = env::split_paths(path).filter(|dir| dir.is_absolute());
    let found = candidates.find_map(|directory| {
        let file = directory.join(name);
        executable(&file).then_some(file)
    });
    found.ok_or_else(|| format!("there is no program {name:?} in PATH, {path:?}"))
}

/// What a command is told.
#[derive(Serialize)]
struct Request<'a> {
    action: &'static str,
    idempotency_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(flatten)]
    content: &'a OrderContent,
}

/// What a command prints.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    #[serde(default)]
    before: Value,
    #[serde(default)]
    after: Value,
    #[serde(default)]
    changes: Option<Vec<Change>>,
    #[serde(default)]
    summary: Option<String>,
}

impl Applier for CommandApplier {
    async fn preview(&self, order: &OrderContent) -> Result<Option<Diff>, TypeError> {
        let Some(preview) = &self.preview else { return Ok(None) };
        let idempotency_key = order.order.id.to_string();
        let request = Request {
            action: "preview",
            idempotency_key,
            fence: None,
            attempt: None,
            content: order,
        };
        run(preview, &request).await.map(Some)
    }

    async fn apply(&self, order: &OrderContent, step: &mut ApplyStep) -> Result<Diff, TypeError> {
        let request = Request {
            action: "apply",
            idempotency_key: step.idempotency_key(),
            fence: Some(step.fence()),
            attempt: Some(step.attempt()),
            content: order,
        };
        run(&self.apply, &request).await
    }
}

async fn run(process: &Process, request: &Request<'_>) -> Result<Diff, TypeError> {
    let input = serde_json::to_vec(request).map_err(|error| TypeError::Failed(error.into()))?;
    let failed = |reason: String, stderr: &str| {
        let said = if stderr.is_empty() { String::new() } else { format!("; stderr: {stderr}") };
        let name = process.program.display();
        TypeError::Failed(format!("the command {name}: {reason}{said}").into())
    };
    let Output { stdout, stderr } = match process.run(&input).await {
        Ok(output) => output,
        Err((failure, stderr)) => return Err(failed(failure.to_string(), &stderr)),
    };
    tracing::debug!(command = %process.program.display(), %stderr, "an applier has ended");
    // An object first: serde would read a list as the fields in their order.
    let object = serde_json::from_slice::<Map<String, Value>>(&stdout);
    let printed = object.and_then(|object| Printed::deserialize(Value::Object(object)));
    let printed = printed.map_err(|error| {
        let shown: String = readable(&stdout).chars().take(200).collect();
        failed(format!("it printed no diff: {error}; it printed {shown:?}"), &stderr)
    })?;
    let mut diff = Diff::between(printed.before, printed.after);
    if let Some(changes) = printed.changes {
        diff.changes = changes;
    }
    diff.summary = printed.summary;
    Ok(diff)
}

/// Without the environment, which may have secrets.
impl fmt::Debug for CommandApplier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("CommandApplier");
        shown.field("command", &self.apply.program);
        shown.field("preview", &self.preview.is_some()).finish_non_exhaustive()
    }
}
