//! minijinja with the settings, filters and functions that Hugging Face's chat templates count on.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use std::io::{self, Write};

/// Longest text of one list or map, in bytes. A value whose parts are shared can be small and its text
/// without end, and fuel is charged for a text only once it is there.
const TEXT_MAX: usize = 1 << 24;
/// Deepest nesting and most parts, shared ones counted each time, of a value that is written. A namespace
/// can hold itself. (`~`, comparisons and `join` as a filter are minijinja's own, and not bounded thus: two
/// namespaces that hold themselves still overflow the stack there, and shared lists can take without end.)
const DEPTH_MAX: usize = 32;
const PARTS_MAX: usize = 1 << 20;
/// Address space for the stack of [`apart`]; only what is used becomes memory. minijinja recurses along
/// chains of operators, which the source's length bounds, and along nested values, which fuel bounds.
const STACK: usize = 1 << 29;
const NAME: &str = "chat_template";

/// Compiles a template.
pub(super) fn compile(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_unknown_method_callback(method);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.set_formatter(|out, _, value| match value.as_object() {
        Some(_) => out.write_str(&string(value)?).map_err(Error::from),
        None => write!(out, "{value}").map_err(Error::from),
    });
    environment.add_template_owned(NAME, source.to_owned())?;
    Ok(environment)
}

/// What the template writes, for at most so much fuel. Fuel also pays for memory: one unit for 64 bytes.
pub(super) fn render(environment: &Environment, context: Value, fuel: u64) -> Result<String, Error> {
    let mut environment = environment.clone();
    environment.set_fuel(Some(fuel));
    environment.get_template(NAME)?.render(context)
}

/// Runs `work` on a thread with a stack that is large enough for it; a panic is an error.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name(NAME.to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread for it: {error}"))?
            .join()
            .unwrap_or_else(|_| Err("it made the interpreter panic".to_owned()))
    })
}

/// Python's methods, with those bounded that can write more than they read.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    match name {
        "join" => arguments.iter().try_for_each(check_parts)?,
        "format" => check_format(value.as_str().unwrap_or_default(), arguments)?,
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// No format specifications, since a width is memory; and no more text than [`TEXT_MAX`].
fn check_format(format: &str, arguments: &[Value]) -> Result<(), Error> {
    let refuse = |why: String| {
        Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("str.format: {why}"),
        ))
    };
    if format.contains(':') && format.contains('{') {
        return refuse("format specifications are not supported".to_owned());
    }
    let fields = format.matches('{').count();
    let mut longest = 0;
    for argument in arguments {
        longest = longest.max(string(argument)?.len());
    }
    if fields.saturating_mul(longest) > TEXT_MAX {
        return refuse(format!("the text may be longer than {TEXT_MAX} bytes"));
    }
    Ok(())
}

/// Refuses a value that is nested too deeply, or has too many parts, to be written.
fn check_parts(value: &Value) -> Result<(), Error> {
    let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, what.to_owned()));
    let mut parts = 0;
    let mut open = vec![(value.clone(), 0)];
    while let Some((value, depth)) = open.pop() {
        let is_map = value.kind() == ValueKind::Map;
        if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            continue;
        }
        if depth == DEPTH_MAX {
            return refuse("a value is nested too deeply to be written");
        }
        for item in value.try_iter()? {
            parts += 1;
            if parts > PARTS_MAX {
                return refuse("a value has too many parts to be written");
            }
            if is_map {
                open.push((value.get_item(&item)?, depth + 1));
            }
            open.push((item, depth + 1));
        }
    }
    Ok(())
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// `str(value)`.
fn string(value: &Value) -> Result<String, Error> {
    check_parts(value)?;
    let mut text = Bounded::default();
    write!(text, "{value}").map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))?;
    text.into_string()
}

/// The local time, as `datetime.now().strftime(format)` writes it in Python.
fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// `json.dumps(value, ensure_ascii=False)`: not Jinja's own filter, which escapes for HTML.
fn tojson(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    // The default; `true`, `sort_keys` and `separators` are refused below rather than ignored.
    if options.peek::<Option<bool>>("ensure_ascii")? == Some(false) {
        options.get::<bool>("ensure_ascii")?;
    }
    options.assert_all_used()?;
    check_parts(value)?;
    let mut json = Bounded::default();
    let result = match indent {
        Some(indent) => {
            let spaces = vec![b' '; indent.min(64)];
            let formatter = PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Spaced)),
    };
    result.map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}")))?;
    json.into_string()
}

/// A value as Python writes it.
pub(super) fn spaced(value: &serde_json::Value) -> String {
    let mut text = Vec::new();
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Spaced));
    written.expect("a text takes all");
    String::from_utf8(text).expect("JSON is text")
}

/// Python's separators: `, ` and `: `.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A text that refuses more than [`TEXT_MAX`].
#[derive(Default)]
struct Bounded(Vec<u8>);

impl Bounded {
    fn into_string(self) -> Result<String, Error> {
        String::from_utf8(self.0).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > TEXT_MAX {
            return Err(io::Error::other(format!(
                "the text of a value is longer than {TEXT_MAX} bytes"
            )));
        }
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
