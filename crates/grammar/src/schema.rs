//! JSON schemas, made ready for the compiler.

use serde_json::{Value, json};

use crate::{CompileError, check_length};

/// Most levels of a schema.
pub const MAX_DEPTH: usize = 64;

/// A text that leaves no choice is written ahead as a whole, and none is longer than the shortest answer.
const LONGEST_FORCED: u64 = 8 << 10;

/// Checks a schema's size, and says how JSON is written.
pub(crate) fn prepare(schema: &Value) -> Result<Value, CompileError> {
    check_length(schema.to_string().len())?;
    check_depth(schema)?;
    if Shortest::of(schema) > LONGEST_FORCED {
        return Err(CompileError::Refused(format!(
            "its shortest answer has more than {LONGEST_FORCED} bytes"
        )));
    }
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        // Everything is allowed.
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => return Err(CompileError::Refused("it allows nothing".into())),
        _ => {
            return Err(CompileError::Refused(
                "it is neither an object nor a boolean".into(),
            ));
        }
    };
    object.insert(
        "x-guidance".into(),
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "}),
    );
    Ok(Value::Object(object))
}

/// More references than this may be a chain that is followed to its end at once.
const MOST_REFERENCES: usize = 1_000;
/// Bounds beyond this are no whole numbers of doubles, and the compiler cannot count to them.
const GREATEST_BOUND: f64 = (1u64 << 53) as f64;
const BOUNDS: [&str; 5] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Without recursion: the schema comes from a stranger.
fn check_depth(schema: &Value) -> Result<(), CompileError> {
    let mut open = vec![(schema, 1)];
    let mut references = 0;
    while let Some((value, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(CompileError::TooDeep);
        }
        references += usize::from(value.get("$ref").is_some());
        if references > MOST_REFERENCES {
            return Err(CompileError::Refused(format!(
                "it has more than {MOST_REFERENCES} references"
            )));
        }
        for name in BOUNDS {
            let bound = value.get(name).and_then(Value::as_f64);
            if bound.is_some_and(|bound| bound.abs() > GREATEST_BOUND) {
                return Err(CompileError::Refused(format!(
                    "{name} is beyond {GREATEST_BOUND}"
                )));
            }
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// A lower bound of the bytes of what a schema describes.
struct Shortest<'a> {
    root: &'a Value,
    /// Schemas that may still be looked at: references may multiply them without end.
    left: std::cell::Cell<u32>,
}

impl Shortest<'_> {
    fn of(root: &Value) -> u64 {
        let left = std::cell::Cell::new(20_000);
        Shortest { root, left }.bytes(root, 0)
    }

    fn bytes(&self, schema: &Value, depth: usize) -> u64 {
        let Some(fields) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
            return 0;
        };
        let Some(left) = self.left.get().checked_sub(1) else {
            return 0;
        };
        self.left.set(left);
        let length = |value: &Value| value.to_string().len() as u64;
        let each = |name: &str| fields.get(name).and_then(Value::as_array).into_iter().flatten();
        let count = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or(0);
        let below = |value: &Value| self.bytes(value, depth + 1);
        let mut least = fields.get("const").map_or(0, length);
        least = least.max(each("enum").map(length).min().unwrap_or(0));
        least = least.max(count("minLength"));
        if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
            let target = target
                .strip_prefix('#')
                .and_then(|pointer| self.root.pointer(pointer));
            least = least.max(target.map_or(0, below));
        }
        for name in ["anyOf", "oneOf"] {
            least = least.max(each(name).map(below).min().unwrap_or(0));
        }
        least = least.max(each("allOf").map(below).max().unwrap_or(0));
        let first = each("prefixItems").count() as u64;
        let items = fields.get("items").map_or(0, below).max(1);
        let rest = count("minItems").saturating_sub(first).saturating_mul(items);
        let prefix = each("prefixItems").take(count("minItems") as usize).map(below);
        least = least.max(prefix.fold(rest, u64::saturating_add));
        let properties = each("required").filter_map(|name| {
            let property = fields.get("properties")?.get(name.as_str()?)?;
            Some(below(property).saturating_add(length(name)))
        });
        least.max(properties.fold(0, u64::saturating_add))
    }
}
