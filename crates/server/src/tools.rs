//! What an answer must be: text, JSON, or calls of functions; and the grammar that sees to it.

use std::fmt::Write as _;

use foretoken_grammar::{CompileError, Grammars, embed_schema};
use foretoken_model::{CALL_CLOSE, CALL_OPEN};
use foretoken_spec::Grammar;
use serde_json::{Value, json};

use crate::calls::{HEAD, MIDDLE, TAIL};
use crate::error::ApiError;
use crate::fields::Fields;

/// Most functions of a request.
const MOST_TOOLS: usize = 128;
/// Longest name of a function.
pub(crate) const LONGEST_NAME: usize = 64;

/// What a request says about its answer's form.
#[derive(Debug, Default)]
pub(crate) struct Form {
    format: Format,
    tools: Vec<Tool>,
    choice: Choice,
    /// Whether one answer may call several functions.
    parallel: bool,
}

/// What text must be.
#[derive(Debug, Default, PartialEq)]
enum Format {
    #[default]
    Text,
    Object,
    Schema(Value),
}

/// Whether functions are called.
#[derive(Debug, Default, PartialEq)]
enum Choice {
    #[default]
    Auto,
    None,
    Required,
    Function(String),
}

/// A function that the model may call.
#[derive(Debug)]
struct Tool {
    name: String,
    parameters: Value,
    /// Whether its arguments must be described by a schema that can be kept to.
    strict: bool,
    /// As the request has it, for the prompt.
    whole: Value,
}

impl Form {
    /// Takes `response_format`, `tools`, `tool_choice` and `parallel_tool_calls`.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
        if tools.len() > MOST_TOOLS {
            return Err(ApiError::field("tools", format!("are more than {MOST_TOOLS}")));
        }
        let tools = tools
            .into_iter()
            .enumerate()
            .map(|(at, tool)| Tool::take(tool, at));
        let tools: Vec<Tool> = tools.collect::<Result<_, _>>()?;
        if let Some(at) = (1..tools.len()).find(|&at| tools[..at].iter().any(|t| t.name == tools[at].name)) {
            return Err(ApiError::field(
                format!("tools[{at}].function.name"),
                "is there twice",
            ));
        }
        let bytes: usize = tools.iter().map(|tool| tool.parameters.to_string().len()).sum();
        if bytes > foretoken_grammar::MAX_BYTES {
            return Err(ApiError::field(
                "tools",
                format!(
                    "have more than {} bytes of parameters",
                    foretoken_grammar::MAX_BYTES
                ),
            ));
        }
        let choice = choice(fields, &tools)?;
        Ok(Self {
            format: format(fields)?,
            tools,
            choice,
            parallel: fields.take("parallel_tool_calls")?.unwrap_or(true),
        })
    }

    /// Whether the answer is text as it comes.
    pub fn is_text(&self) -> bool {
        self.format == Format::Text && !self.calls()
    }

    /// Whether a text that ends the answer could only cut what it must be: JSON, or a call.
    pub fn is_whole(&self) -> bool {
        self.format != Format::Text || self.calls() && self.must_call()
    }

    fn must_call(&self) -> bool {
        matches!(self.choice, Choice::Required | Choice::Function(_))
    }

    /// Whether the answer may call functions.
    pub fn calls(&self) -> bool {
        !self.tools.is_empty() && self.choice != Choice::None
    }

    /// The functions that the prompt tells of: also those that may not be called now.
    pub fn told(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.whole.clone()).collect()
    }

    /// The grammar of answers; `None` where any text will do.
    pub fn grammar(&self, grammars: &Grammars) -> Result<Option<Box<dyn Grammar>>, ApiError> {
        let schema_error = |error: CompileError| ApiError::field("response_format.json_schema.schema", error);
        if self.is_text() {
            return Ok(None);
        }
        let format = match &self.format {
            Format::Text => None,
            Format::Object => Some(json!({"type": "object"})),
            Format::Schema(schema) => Some(schema.clone()),
        };
        if let Some(schema) = format.as_ref().filter(|_| !self.calls()) {
            return grammars.json_schema(schema).map(Some).map_err(schema_error);
        }
        let format = format
            .as_ref()
            .map(embed_schema)
            .transpose()
            .map_err(schema_error)?;
        let lark = self.lark(format, grammars)?;
        grammars
            .lark(lark)
            .map(Some)
            .map_err(|error| ApiError::field("tools", error))
    }

    /// A grammar in Lark's notation: calls, or what else the answer may be.
    fn lark(&self, format: Option<String>, grammars: &Grammars) -> Result<String, ApiError> {
        let forced = self.must_call();
        let mut lark = String::new();
        let open = literal(CALL_OPEN);
        let line = |lark: &mut String, text: std::fmt::Arguments<'_>| {
            lark.write_fmt(text).expect("a text takes all");
            lark.push('\n');
        };
        match (forced, format) {
            (true, _) => line(&mut lark, format_args!("start: {open} calls")),
            (false, Some(format)) => {
                line(&mut lark, format_args!("start: json | {open} calls"));
                line(&mut lark, format_args!("json: {format}"));
            }
            (false, None) => {
                // Text up to the first call, or text in which there is none.
                line(&mut lark, format_args!("start: plain | before \"\\n\" calls"));
                line(&mut lark, format_args!("plain: PLAIN"));
                let tag = CALL_OPEN.trim_end();
                line(
                    &mut lark,
                    format_args!("PLAIN: /(.|\\n)*/ & ~/(.|\\n)*{tag}(.|\\n)*/"),
                );
                line(&mut lark, format_args!("before[lazy]: /(.|\\n)*{tag}/"));
            }
        }
        let one = match &self.choice {
            Choice::Function(_) => true,
            _ => !self.parallel,
        };
        let next = literal(&format!("\n{CALL_OPEN}"));
        match one {
            true => line(&mut lark, format_args!("calls: call")),
            false => line(&mut lark, format_args!("calls: call ({next} call)*")),
        }
        let mut names = Vec::new();
        let end = literal(&[TAIL, CALL_CLOSE].concat());
        for (at, tool) in self.tools.iter().enumerate() {
            if matches!(&self.choice, Choice::Function(name) if *name != tool.name) {
                continue;
            }
            let head = literal(&[HEAD, &tool.name, MIDDLE].concat());
            line(&mut lark, format_args!("call{at}: {head} arguments{at} {end}"));
            let arguments = tool.arguments(at, grammars)?;
            line(&mut lark, format_args!("arguments{at}: {arguments}"));
            names.push(format!("call{at}"));
        }
        line(&mut lark, format_args!("call: {}", names.join(" | ")));
        Ok(lark)
    }
}

impl Tool {
    fn take(value: Value, at: usize) -> Result<Self, ApiError> {
        let mut fields = Fields::new(value.clone(), format!("tools[{at}]"))?;
        let kind: String = fields.require("type")?;
        if kind != "function" {
            return Err(ApiError::field(
                fields.name("type"),
                format!("{kind:?} is not supported; there is function"),
            ));
        }
        let name = fields.name("function");
        let mut function = Fields::new(fields.require("function")?, name)?;
        fields.finish()?;
        let name: String = function.require("name")?;
        let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_fine) {
            return Err(ApiError::field(
                function.name("name"),
                format!("must be 1 to {LONGEST_NAME} letters, digits, _ or -"),
            ));
        }
        let _: Option<String> = function.take("description")?;
        let strict = function.take("strict")?.unwrap_or(false);
        let parameters: Option<Value> = function.take("parameters")?;
        let parameters = match parameters {
            None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
            Some(Value::Object(mut object)) => {
                object.entry("type").or_insert_with(|| json!("object"));
                Value::Object(object)
            }
            Some(_) => return Err(ApiError::field(function.name("parameters"), "is not an object")),
        };
        if parameters["type"] != "object" {
            return Err(ApiError::field(
                function.name("parameters.type"),
                "must be \"object\"",
            ));
        }
        function.finish()?;
        Ok(Self {
            name,
            parameters,
            strict,
            whole: value,
        })
    }

    /// Its arguments as a part of a grammar. Where its schema cannot be kept to, and that was not asked for, any object will do.
    fn arguments(&self, at: usize, grammars: &Grammars) -> Result<String, ApiError> {
        let kept = grammars
            .json_schema(&self.parameters)
            .and_then(|_| embed_schema(&self.parameters));
        match kept {
            Ok(schema) => Ok(schema),
            Err(error) if self.strict => {
                Err(ApiError::field(format!("tools[{at}].function.parameters"), error))
            }
            Err(_) => embed_schema(&json!({"type": "object"}))
                .map_err(|error| ApiError::internal(error.to_string())),
        }
    }
}

/// `response_format`.
fn format(fields: &mut Fields) -> Result<Format, ApiError> {
    let Some(mut format) = fields.object("response_format")? else {
        return Ok(Format::Text);
    };
    let kind: String = format.require("type")?;
    let taken = match kind.as_str() {
        "text" => Format::Text,
        "json_object" => Format::Object,
        "json_schema" => {
            let name = format.name("json_schema");
            let mut schema = Fields::new(format.require("json_schema")?, name)?;
            let _: Option<String> = schema.take("name")?;
            let _: Option<String> = schema.take("description")?;
            // It always is.
            let _: Option<bool> = schema.take("strict")?;
            let value = schema.require("schema")?;
            schema.finish()?;
            Format::Schema(value)
        }
        _ => {
            let problem = format!("{kind:?} is not supported; there are text, json_object and json_schema");
            return Err(ApiError::field(format.name("type"), problem));
        }
    };
    format.finish()?;
    Ok(taken)
}

/// `tool_choice`.
fn choice(fields: &mut Fields, tools: &[Tool]) -> Result<Choice, ApiError> {
    const NAME: &str = "tool_choice";
    let choice = match fields.take::<Value>(NAME)? {
        None => Choice::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "required" => Choice::Required,
            _ => {
                let problem = format!("{choice:?} is none of auto, none, required and a function");
                return Err(ApiError::field(NAME, problem));
            }
        },
        Some(value) => {
            let mut wanted = Fields::new(value, NAME)?;
            wanted.expect("type", |kind| kind == "function")?;
            let name = wanted.name("function");
            let mut function = Fields::new(wanted.require("function")?, name)?;
            wanted.finish()?;
            let name: String = function.require("name")?;
            if tools.iter().all(|tool| tool.name != name) {
                return Err(ApiError::field(
                    function.name("name"),
                    format!("there is no tool {name:?}"),
                ));
            }
            function.finish()?;
            Choice::Function(name)
        }
    };
    if tools.is_empty() && matches!(choice, Choice::Required) {
        return Err(ApiError::field(NAME, "needs tools"));
    }
    Ok(choice)
}

/// A text in Lark's notation.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foretoken_gguf::Gguf;
    use foretoken_model::testing::TinyModel;
    use foretoken_model::{Special, Tokenizer};

    use super::*;

    fn grammars() -> (Grammars, Arc<Tokenizer>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tiny.gguf");
        TinyModel::qwen2().write(&file).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_gguf(&Gguf::open(&file).unwrap()).unwrap());
        (
            Grammars::new(&tokenizer, tokenizer.vocab_size()).unwrap(),
            tokenizer,
        )
    }

    const ON: &str = "<tool_call>\n{\"name\": \"light\", \"arguments\": {\"on\": true}}\n</tool_call>";
    const NOW: &str = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

    #[test]
    fn answers_are_what_the_choice_allows() {
        let (grammars, tokenizer) = grammars();
        let end = tokenizer.end_of_generation()[0];
        let check = |more: Value, texts: &[(String, bool)]| {
            let mut body = json!({"tools": [
                {"type": "function", "function": {"name": "light", "strict": true, "parameters": {"type": "object",
                    "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false}}},
                {"type": "function", "function": {"name": "now"}},
            ]});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let mut fields = Fields::new(body, "").unwrap();
            let form = Form::take(&mut fields).unwrap();
            for (text, want) in texts {
                let mut grammar = form.grammar(&grammars).unwrap().expect("a grammar");
                let tokens = tokenizer.encode(text, Special::Text);
                let taken = tokens.iter().all(|&token| grammar.accept(token)) && grammar.accept(end);
                assert_eq!(taken, *want, "{more} {text}");
            }
        };
        let text = |text: &str, want| (text.to_string(), want);
        let calls = [(format!("{ON}\n{NOW}"), true), text(ON, true), text(NOW, true)];
        let wrong = [
            text(
                "<tool_call>\n{\"name\": \"fly\", \"arguments\": {}}\n</tool_call>",
                false,
            ),
            text(
                "<tool_call>\n{\"name\": \"light\", \"arguments\": {\"on\": 1}}\n</tool_call>",
                false,
            ),
            text(
                "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
                false,
            ),
            text("<tool_call>\n{\"name\": \"now\"", false),
        ];
        let spoken = [
            text("Hello.", true),
            text("a <tool> b", true),
            (format!("Sure.\n{ON}"), true),
        ];
        check(json!({}), &[&calls[..], &wrong, &spoken].concat());
        let silent = spoken.clone().map(|(text, _)| (text, false));
        check(
            json!({"tool_choice": "required"}),
            &[&calls[..], &wrong, &silent].concat(),
        );
        let one = [(format!("{ON}\n{NOW}"), false), text(ON, true), text(NOW, true)];
        check(
            json!({"parallel_tool_calls": false}),
            &[&one[..], &wrong, &spoken].concat(),
        );
        let named = [text(ON, false), text(NOW, true), text("Hello.", false)];
        check(
            json!({"tool_choice": {"type": "function", "function": {"name": "now"}}}),
            &named,
        );
        let json_or_call = [text("{\"a\": 1}", true), text(ON, true), text("Hello.", false)];
        check(json!({"response_format": {"type": "json_object"}}), &json_or_call);
    }
}
