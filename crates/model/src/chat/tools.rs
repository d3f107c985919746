//! Tools for models whose template does not know them: told in words, as most models have seen them.
//!
//! The form of calls is the one that Hermes introduced and Qwen's templates use: an object with a name and arguments between
//! `<tool_call>` and `</tool_call>`.

use serde_json::Value;

use super::environment::spaced;
use super::{Message, ToolCall};

/// What stands around a call.
pub const CALL_OPEN: &str = "<tool_call>\n";
/// See [`CALL_OPEN`].
pub const CALL_CLOSE: &str = "\n</tool_call>";

/// The conversation with tools, calls and results in its texts.
pub(super) fn in_words(messages: &[Message], tools: &[Value]) -> Vec<Message> {
    let mut told: Vec<Message> = Vec::new();
    for message in messages {
        let mut content = message.content.clone();
        for ToolCall { name, arguments } in &message.tool_calls {
            let (name, arguments) = (spaced(&name.as_str().into()), spaced(arguments));
            let gap = if content.is_empty() { "" } else { "\n" };
            content = format!(
                "{content}{gap}{CALL_OPEN}{{\"name\": {name}, \"arguments\": {arguments}}}{CALL_CLOSE}"
            );
        }
        match (message.role.as_str(), told.last_mut()) {
            // Results that follow each other are one message: many templates want the roles to take turns.
            ("tool", Some(last)) if last.role == "user" && last.content.ends_with(RESULT_CLOSE) => {
                last.content = format!("{}\n{RESULT_OPEN}{content}{RESULT_CLOSE}", last.content);
            }
            ("tool", _) => told.push(Message::new(
                "user",
                format!("{RESULT_OPEN}{content}{RESULT_CLOSE}"),
            )),
            (role, _) => told.push(Message::new(role, content)),
        }
    }
    if !tools.is_empty() {
        let text = instructions(tools);
        match told.first_mut() {
            Some(first) if first.role == "system" => first.content = format!("{}\n\n{text}", first.content),
            _ => told.insert(0, Message::new("system", text)),
        }
    }
    told
}

const RESULT_OPEN: &str = "<tool_response>\n";
const RESULT_CLOSE: &str = "\n</tool_response>";

fn instructions(tools: &[Value]) -> String {
    let mut text = String::from("You can call functions. These are their signatures, one a line:\n<tools>\n");
    for tool in tools {
        text.push_str(&tool.to_string());
        text.push('\n');
    }
    text.push_str(
        "</tools>\nTo call one, write its name and its arguments as JSON between <tool_call> and </tool_call>:\n\
         <tool_call>\n{\"name\": \"the function's name\", \"arguments\": {\"its\": \"arguments\"}}\n</tool_call>\n\
         You are given what it returns between <tool_response> and </tool_response>. Call a function only where it helps.",
    );
    text
}
