//! Chat templates from GGUF metadata.
//!
//! A template is a Jinja program written for Python; `environment` makes minijinja behave alike. What it
//! writes becomes tokens such that control tokens come from the template alone; `literal` says how text
//! is kept apart from it.
//!
//! Not here: documents, and messages with parts other than text.

mod environment;
mod literal;
mod tools;

use crate::{LoadError, Tokenizer};
use foretoken_gguf::Gguf;
use foretoken_spec::Token;
use literal::Marks;
use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
use std::ops::Range;

pub use tools::{CALL_CLOSE, CALL_OPEN};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or `tool` for what a function returned.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Functions that the assistant called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// A message that is text alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            tool_calls: Vec::new(),
        }
    }
}

/// A call of a function by the assistant.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// An object.
    pub arguments: serde_json::Value,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

/// Longest source, in bytes; real templates have less. It bounds how deep minijinja recurses in expressions.
const SOURCE_MAX: usize = 1 << 16;
/// What a template may do, in minijinja's unit: one instruction, or 64 bytes written or copied.
const FUEL: u64 = 300_000;
/// What it may do beyond for each message, and for each byte of text.
const FUEL_PER_MESSAGE: u64 = 1_000;
const FUEL_PER_BYTE: u64 = 1;

impl ChatTemplate {
    /// The template of the file; `None` if it has none.
    ///
    /// # Errors
    /// A template that is no Jinja, or absurdly long.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>, LoadError> {
        gguf.string("tokenizer.chat_template")?
            .map(|source| Self::new(source).map_err(LoadError::ChatTemplate))
            .transpose()
    }

    fn new(source: &str) -> Result<Self, String> {
        if source.len() > SOURCE_MAX {
            return Err(format!(
                "it has {} bytes; at most {SOURCE_MAX} are supported",
                source.len()
            ));
        }
        let environment =
            environment::apart(|| environment::compile(source).map_err(|error| explain(&error)))?;
        Ok(Self {
            environment,
            source: source.to_owned(),
        })
    }

    /// The tokens of a prompt that asks the model to answer `messages`, the token that prompts start with
    /// included. `tools` are functions that it may call, in the form of OpenAI's API.
    ///
    /// Special tokens come from the template alone: text inside a message, its role included, is never parsed
    /// as control tokens, also not where the template cuts or joins it.
    /// User-defined tokens that the template writes itself count as control tokens, since some files list
    /// `<|im_start|>` as one; so do all in bars.
    ///
    /// # Errors
    /// What the template itself refuses (a role that it does not know, roles in another order), and a
    /// template that runs too long or writes too much.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[serde_json::Value],
    ) -> Result<Vec<Token>, String> {
        let plain = tools.is_empty()
            && messages
                .iter()
                .all(|m| m.tool_calls.is_empty() && m.role != "tool");
        let rendered = match plain || self.knows_tools() {
            true => self.render(tokenizer, messages, tools)?,
            false => self.render(tokenizer, &tools::in_words(messages, tools), &[])?,
        };
        let Rendered {
            text,
            literal,
            markup,
        } = rendered;
        let mut tokens = tokenizer.encode_literal(&text, &literal, &markup);
        if let Some(bos) = tokenizer.bos()
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    /// Whether calls come out in the form that answers are read in ([`CALL_OPEN`]).
    fn knows_tools(&self) -> bool {
        let written = ["\"arguments\": ", "\\\"arguments\\\": "];
        self.source.contains("tools")
            && self.source.contains(CALL_OPEN.trim_end())
            && written.iter().any(|field| self.source.contains(field))
    }

    /// The prompt, apart by whose text it is.
    fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[serde_json::Value],
    ) -> Result<Rendered, String> {
        let (bos, eos) = (tokenizer.bos_piece(), tokenizer.eos_piece());
        let tools_text = serde_json::Value::from(tools).to_string();
        let calls: Vec<String> = messages
            .iter()
            .flat_map(|message| &message.tool_calls)
            .map(|call| format!("{}{}", call.name, call.arguments))
            .collect();
        let texts = messages
            .iter()
            .flat_map(|message| [&*message.role, &*message.content])
            .chain(calls.iter().map(String::as_str))
            .chain([&*tools_text, &*self.source, bos, eos]);
        let marks = Marks::unused_in(texts).ok_or("the messages use every private character of Unicode")?;
        let run = |mark: &dyn Fn(&str) -> String| {
            let mut fuel = FUEL + FUEL_PER_MESSAGE * (messages.len() + tools.len()) as u64;
            fuel += 4 * FUEL_PER_BYTE * tools_text.len() as u64;
            let messages = messages.iter().map(|message| {
                let Message {
                    role,
                    content,
                    tool_calls,
                } = message;
                let role = if literal::is_role(role) {
                    role.clone()
                } else {
                    mark(role)
                };
                let content = mark(content);
                fuel += FUEL_PER_BYTE * (role.len() + content.len()) as u64;
                let mut fields = vec![("role", Value::from(role)), ("content", Value::from(content))];
                if !tool_calls.is_empty() {
                    let calls = tool_calls.iter().map(|call| {
                        let arguments = marked(&call.arguments, mark);
                        fuel += 4 * FUEL_PER_BYTE * arguments.to_string().len() as u64;
                        let name = Value::from(mark(&call.name));
                        Value::from_pairs([("name", name), ("arguments", Value::from(Serde(&arguments)))])
                    });
                    fields.push(("tool_calls", calls.collect()));
                }
                Value::from_pairs(fields)
            });
            let messages: Value = messages.collect();
            let tools = match tools.is_empty() {
                true => Value::from(()),
                false => tools
                    .iter()
                    .map(|tool| Value::from(Serde(marked(tool, mark))))
                    .collect(),
            };
            let context = context! {
                messages,
                add_generation_prompt => true,
                bos_token => bos,
                eos_token => eos,
                tools,
                documents => (),
            };
            let text = environment::apart(|| {
                environment::render(&self.environment, context, fuel).map_err(|error| explain(&error))
            })?;
            Ok::<_, String>(marks.remove(&text))
        };
        let control = |(text, literal): &(String, Vec<Range<usize>>), markup: &[Token]| -> Vec<Token> {
            let tokens = tokenizer.control_tokens(text, literal, markup);
            tokens.into_iter().map(|(token, _)| token).collect()
        };
        // Marking everything shows the template's own control tokens.
        let whole = |text: &str| literal::inside(text, tokenizer.control_has_space());
        let opaque = run(&|text| marks.mark(text, &[whole(text)]))?;
        let markup = tokenizer.markup(&[(&self.source, &[]), (&opaque.0, &opaque.1)]);
        let own = control(&opaque, &markup);
        // Marking only what is the text of a control token lets the template read all other text as it is: at
        // first markup too, which some templates look for to take it out. Where control tokens come out that
        // are not its own, of text left, joined or changed, more is marked.
        for marked in [&markup[..0], &markup] {
            let mark = |text: &str| {
                let found = tokenizer.control_tokens(text, &[], marked);
                let ranges: Vec<_> = found.into_iter().map(|(_, range)| range).collect();
                marks.mark(text, &ranges)
            };
            let rendered = run(&mark)?;
            if control(&rendered, &markup) == own {
                return Ok(Rendered::new(rendered, markup.clone()));
            }
        }
        Ok(Rendered::new(opaque, markup))
    }
}

/// The same value with all texts in it marked, names of fields that are no words too.
fn marked(value: &serde_json::Value, mark: &dyn Fn(&str) -> String) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(mark(text)),
        Value::Array(items) => items.iter().map(|item| marked(item, mark)).collect(),
        Value::Object(fields) => {
            // Templates look for some by name, and no name of a control token is a word.
            let is_word = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
            let marked_name = |name: &String| if is_word(name) { name.clone() } else { mark(name) };
            let fields = fields
                .iter()
                .map(|(name, value)| (marked_name(name), marked(value, mark)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// What a template wrote.
struct Rendered {
    text: String,
    /// Ranges of it, in bytes, that no control token may overlap.
    literal: Vec<Range<usize>>,
    /// User-defined tokens that count as control tokens.
    markup: Vec<Token>,
}

impl Rendered {
    fn new((text, literal): (String, Vec<Range<usize>>), markup: Vec<Token>) -> Self {
        Self {
            text,
            literal,
            markup,
        }
    }
}

/// The error and what caused it, in one line.
fn explain(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
