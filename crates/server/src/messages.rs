//! The messages of a conversation, as requests have them.

use foretoken_model::{Message, ToolCall};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::tools::LONGEST_NAME;

/// The messages of a conversation.
pub(crate) fn messages(values: Vec<Value>) -> Result<Vec<Message>, ApiError> {
    if values.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    let mut messages = Vec::new();
    // Ids of the last calls that have no result yet, in their order, and the results that came: models are not told of ids.
    let mut open: Vec<String> = Vec::new();
    let mut results: Vec<(usize, Message)> = Vec::new();
    for (at, value) in values.into_iter().enumerate() {
        let (message, ids) = message(Fields::new(value, format!("messages[{at}]"))?)?;
        if message.role == "tool" {
            let place = open.iter().position(|id| ids.contains(id)).ok_or_else(|| {
                let problem = "is none of the calls that this message follows, or has a result already";
                ApiError::field(format!("messages[{at}].tool_call_id"), problem)
            })?;
            // An id answers once.
            open[place].clear();
            results.push((place, message));
            continue;
        }
        settle(&mut messages, &mut results);
        open = ids;
        messages.push(message);
    }
    settle(&mut messages, &mut results);
    Ok(messages)
}

/// Puts results into the order of their calls.
fn settle(messages: &mut Vec<Message>, results: &mut Vec<(usize, Message)>) {
    results.sort_by_key(|(place, _)| *place);
    messages.extend(results.drain(..).map(|(_, message)| message));
}

/// A message, and the ids of its calls or of the call that it answers.
fn message(mut fields: Fields) -> Result<(Message, Vec<String>), ApiError> {
    let role: String = fields.require("role")?;
    let role = match role.as_str() {
        "system" | "user" | "assistant" | "tool" => role,
        "developer" => "system".to_string(),
        _ => {
            let problem =
                format!("{role:?} is not supported; there are system, developer, user, assistant and tool");
            return Err(ApiError::field(fields.name("role"), problem));
        }
    };
    let (mut tool_calls, mut ids) = (Vec::new(), Vec::new());
    if role == "assistant" {
        let name = fields.name("tool_calls");
        let calls: Vec<Value> = fields.take("tool_calls")?.unwrap_or_default();
        for (at, call) in calls.into_iter().enumerate() {
            let (call, id) = tool_call(Fields::new(call, format!("{name}[{at}]"))?)?;
            tool_calls.push(call);
            ids.push(id);
        }
    }
    if role == "tool" {
        ids.push(fields.require("tool_call_id")?);
    }
    let content = match tool_calls.is_empty() {
        true => Some(fields.require("content")?),
        false => fields.take("content")?,
    };
    let content = content.map_or(Ok(String::new()), |value| {
        content_text(&fields.name("content"), value)
    })?;
    // What answers carry and clients send back.
    let none = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    fields.expect("tool_calls", none)?;
    fields.expect("annotations", none)?;
    fields.finish()?;
    let message = Message {
        role,
        content,
        tool_calls,
    };
    Ok((message, ids))
}

fn tool_call(mut fields: Fields) -> Result<(ToolCall, String), ApiError> {
    let id = fields.require("id")?;
    fields.expect("type", |kind| kind == "function")?;
    // Of a stream, which clients may have put together.
    fields.ignore(&["index"]);
    let name = fields.name("function");
    let mut function = Fields::new(fields.require("function")?, name)?;
    fields.finish()?;
    let name: String = function.require("name")?;
    if name.len() > LONGEST_NAME {
        return Err(ApiError::field(
            function.name("name"),
            format!("is longer than {LONGEST_NAME} bytes"),
        ));
    }
    let arguments: String = function.require("arguments")?;
    function.finish()?;
    let call = ToolCall {
        name,
        // A model may have said what is no JSON.
        arguments: serde_json::from_str(&arguments).unwrap_or(Value::String(arguments)),
    };
    Ok((call, id))
}

/// A message's text, or the texts of its parts.
pub(crate) fn content_text(name: &str, value: Value) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(name, "is neither text nor an array of parts")),
    };
    let mut texts = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let mut part = Fields::new(part, format!("{name}[{at}]"))?;
        let kind: String = part.require("type")?;
        if kind != "text" {
            let problem = format!("{kind:?} is not supported; there is text");
            return Err(ApiError::field(part.name("type"), problem));
        }
        texts.push_str(&part.require::<String>("text")?);
        part.finish()?;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_text_whatever_their_form() {
        let got = messages(vec![
            json!({"role": "developer", "content": "Be brief."}),
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            json!({"role": "assistant", "content": "c", "tool_calls": null, "refusal": null}),
        ]);
        let said: Vec<_> = got.unwrap().into_iter().map(|m| (m.role, m.content)).collect();
        let want = [("system", "Be brief."), ("user", "ab"), ("assistant", "c")];
        assert_eq!(
            said,
            want.map(|(role, content)| (role.to_string(), content.to_string()))
        );
    }

    #[test]
    fn calls_and_their_results_are_messages_too() {
        let got = messages(vec![
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}},
                {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "nonsense"}},
            ]}),
            json!({"role": "tool", "tool_call_id": "call_2", "content": "8"}),
            json!({"role": "tool", "tool_call_id": "call_1", "content": "7"}),
            json!({"role": "user", "content": "Thanks."}),
        ])
        .unwrap();
        let said: Vec<_> = got.iter().map(|m| m.content.as_str()).collect();
        assert_eq!(said, ["", "7", "8", "Thanks."]);
        assert_eq!(got[0].tool_calls[0].name, "f");
        assert_eq!(got[0].tool_calls[0].arguments, json!({"a": [1]}));
        assert_eq!(got[0].tool_calls[1].arguments, json!("nonsense"));
        assert_eq!((got[0].content.as_str(), got[1].role.as_str()), ("", "tool"));
    }

    #[test]
    fn what_is_wrong_with_a_message_is_named() {
        let check = |value: Value, want: &str| {
            let error = messages(vec![json!({"role": "user", "content": "x"}), value]).unwrap_err();
            assert_eq!(error.body()["error"]["param"], want);
        };
        check(json!({"role": "function", "content": "x"}), "messages[1].role");
        check(
            json!({"role": "tool", "content": "x"}),
            "messages[1].tool_call_id",
        );
        check(
            json!({"role": "tool", "tool_call_id": "a", "content": "x"}),
            "messages[1].tool_call_id",
        );
        check(
            json!({"role": "user", "content": "x", "tool_calls": [{}]}),
            "messages[1].tool_calls",
        );
        check(
            json!({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}),
            "messages[1].tool_calls[0].function.arguments",
        );
        check(json!({"content": "x"}), "messages[1].role");
        check(json!({"role": "user"}), "messages[1].content");
        check(json!({"role": "user", "content": 5}), "messages[1].content");
        check(
            json!({"role": "user", "content": [{"type": "image_url"}]}),
            "messages[1].content[0].type",
        );
        check(
            json!({"role": "user", "content": [{"type": "text"}]}),
            "messages[1].content[0].text",
        );
        check(
            json!({"role": "user", "content": "x", "name": "Ann"}),
            "messages[1].name",
        );
        check(json!("x"), "messages[1]");
    }
}
