//! JSON schemas, made ready for the compiler.

use serde_json::{Value, json};

use crate::{CompileError, check_length};

/// Most levels of a schema.
pub const MAX_DEPTH: usize = 64;

/// Checks a schema's size, and says how JSON is written.
pub(crate) fn prepare(schema: &Value) -> Result<Value, CompileError> {
    check_length(schema.to_string().len())?;
    check_depth(schema)?;
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

/// Without recursion: the schema comes from a stranger.
fn check_depth(schema: &Value) -> Result<(), CompileError> {
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(CompileError::TooDeep);
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}
